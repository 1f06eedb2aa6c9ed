"""RequestError: the request is invalid or was refused."""

from __future__ import annotations

from headwater.errors.base import HeadwaterError


class RequestError(HeadwaterError):
    status = 400
    title = "Bad request"
    advice = "Correct the request; a retry does not help."


class BadRequestError(RequestError):
    """The request is invalid, and no more specific error applies."""


class InvalidHeaderError(BadRequestError):
    title = "Invalid header"


class InvalidQueryError(BadRequestError):
    title = "Invalid query parameter"


class InvalidPathError(BadRequestError):
    title = "Invalid stream path"


class InvalidOffsetError(BadRequestError):
    title = "Invalid offset"
    advice = "Use an offset that this stream gave, -1 for its beginning or now for its end."


class InvalidJsonError(BadRequestError):
    title = "Invalid JSON"


class InvalidChangeError(BadRequestError):
    """A line of the body is not a change. `line` is the number of the first such line, counted from 1."""

    title = "Invalid change"
    advice = "Correct that line and send the whole body again: nothing of it was appended."

    def __init__(self, detail: str = "", *, line: int = 0) -> None:
        super().__init__(detail)
        self.line = line


class InvalidComposeError(BadRequestError):
    title = "Invalid compose"


class InvalidNotifyError(BadRequestError):
    title = "Invalid Notify form"
    advice = "Send at most one surl, and an absolute http or https URL as every value."


class EmptyBodyError(BadRequestError):
    title = "Empty body"


class MissingContentTypeError(BadRequestError):
    title = "Content type missing"
    advice = "Send the stream's content type with every body."


class InvalidForkError(BadRequestError):
    title = "Invalid fork"


class InvalidRetentionError(BadRequestError):
    title = "Invalid retention"


class InvalidSubscriptionError(BadRequestError):
    title = "Invalid request to a subscription"
    protocol_code = "INVALID_REQUEST"


class WebhookUrlRejectedError(BadRequestError):
    title = "Webhook URL rejected"
    advice = "Use an https URL of a public server; docs/operations.md lists which targets are refused."
    protocol_code = "WEBHOOK_URL_REJECTED"


class NewEpochSequenceError(BadRequestError):
    title = "A new epoch starts at sequence 0"
    advice = "The server has no state of this producer. Start a new producer."


class UnauthorizedError(RequestError):
    status = 401
    title = "Not authenticated"
    advice = "Send a valid token; headwater token add creates one, and the commands read it from HEADWATER_TOKEN."


class WakeTokenError(UnauthorizedError):
    title = "Invalid token of a wake"
    advice = "Send the token that came with the wake or the claim, and only with requests about it."
    protocol_code = "TOKEN_INVALID"


class WakeTokenExpiredError(WakeTokenError):
    title = "Token of a wake has expired"
    advice = "Claim the subscription again, or wait for the next webhook."
    protocol_code = "TOKEN_EXPIRED"


class ForbiddenError(RequestError):
    status = 403
    title = "Not allowed"
    advice = "Ask the operator for a token with the missing scope."


class StaleEpochError(RequestError):
    status = 403
    title = "Stale producer epoch"
    advice = "Another producer with this id has a higher epoch. Stop this one, or claim a higher epoch."

    def __init__(self, detail: str = "", *, epoch: int | None = None) -> None:
        super().__init__(detail)
        self.epoch = epoch  # the current epoch of the producer


class OriginNotAllowedError(RequestError):
    status = 403
    title = "Origin not allowed"
    advice = "Start the server with --allow-origin and the origin of the page."


class TooManyStreamsError(RequestError):
    status = 403
    title = "Too many streams"
    advice = "Delete streams that are no longer needed, or raise the server's streams_max."


class QuotaExceededError(RequestError):
    status = 403
    title = "Quota exceeded"
    advice = "Delete streams that are no longer needed, or raise the quota of the prefix."


class StreamNotFoundError(RequestError):
    status = 404
    title = "Stream or table not found"
    advice = "Create the stream or table, or correct its URL."


class ViewSourceNotFoundError(RequestError):
    status = 404
    title = "Source of the view not found"
    advice = "Create the source before the view, or correct the path of the source."


class ComposeSourceNotFoundError(RequestError):
    """A source of a compose does not exist, or was deleted. Nothing was appended."""

    status = 404
    title = "Source of a compose not found"
    advice = "Correct the path of the source, or store its data again."


class SubscriptionNotFoundError(RequestError):
    status = 404
    title = "Subscription not found"
    advice = "Create the subscription, or correct its id."
    protocol_code = "SUBSCRIPTION_NOT_FOUND"


class EntityNotFoundError(RequestError):
    """The state of the stream has no entity with this type and key."""

    status = 404
    title = "Entity not found"
    advice = "Check its type and key. It may have been deleted, or not be written yet."

    def __init__(self, detail: str = "", *, at: tuple[int, int] | None = None) -> None:
        super().__init__(detail)
        self.at = at  # the id that the position belongs to, and the position of the state
        self.offset = ""  # set by the client: the offset of the state


class UnknownRouteError(RequestError):
    status = 404
    title = "Unknown URL"
    advice = "Correct the URL."


class MethodNotAllowedError(RequestError):
    status = 405
    title = "Method not allowed"

    def __init__(self, detail: str = "", *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.allowed = allowed


class NotAcceptableError(RequestError):
    status = 406
    title = "Not acceptable"
    advice = "Ask for the schema and version that the table has, or leave them out of Accept."


class RequestTimeoutError(RequestError):
    status = 408
    title = "Request not received in time"
    advice = "Send it again."


class ConflictError(RequestError):
    status = 409
    title = "Conflict"


class ConfigurationError(ConflictError):
    title = "Stream exists with a different configuration"
    advice = "Use another path or name, or the configuration that exists."


class ReadOnlyError(ConflictError):
    title = "A view is read-only"


class PathBlockedError(ConflictError):
    title = "Path is blocked by a deleted stream that still has forks"


class SourceGoneError(ConflictError):
    title = "Fork source was deleted"


class ContentTypeError(ConflictError):
    title = "Content type does not match the stream"
    advice = "Send data of the stream's content type."


class StreamClosedError(ConflictError):
    title = "Stream is closed"
    advice = "A closed stream takes no more appends. Continue in a fork or in a new stream."

    def __init__(self, detail: str = "", *, tail: tuple[int, int] | None = None) -> None:
        super().__init__(detail)
        self.tail = tail  # the end of the stream: the id that the position belongs to, and the position


class DocumentConflictError(ConflictError):
    title = "Document was changed by another writer"
    advice = "Read the document again and repeat the change."


class SequenceRegressionError(ConflictError):
    title = "Stream-Seq does not advance"
    advice = "Another writer has appended with a higher Stream-Seq. Read its data before you continue."


class SeqNoRegressionError(ConflictError):
    title = "Rows are out of order"
    advice = "Append rows with increasing SeqNos that are larger than the SeqNo of the table's last row."


class MirrorMismatchError(ConflictError):
    """Rows appended to a mirror leave a row out, or differ from rows that the mirror has."""

    title = "Rows do not fit the mirror"
    advice = "Continue after the mirror's last row. If the source was created again, mirror it into another table."


class ViewTooLargeError(ConflictError):
    title = "Too many live keys"
    advice = "Read all rows instead of the active view, or raise the server's active_keys_max."


class NoStateError(ConflictError):
    title = "Not a state stream"
    advice = "Only streams of application/json have a state. The live rows of a table are read with view=active."


class StateTooLargeError(ConflictError):
    title = "State too large"
    advice = "Read the stream and fold its events, or raise the server's state_bytes_max."


class TooManyNurlsError(ConflictError):
    title = "Too many NURLs"
    advice = "Withdraw NURLs that are no longer needed, or raise nurls_per_table_max or nurls_max."


class TooManyViewsError(ConflictError):
    title = "Too many views"
    advice = "Delete views that are no longer needed, or raise the server's views_max."


class TooManySubscriptionsError(ConflictError):
    title = "Too many subscriptions"
    advice = "Delete subscriptions that are no longer needed, or raise the limit that the detail names."
    protocol_code = "TOO_MANY_SUBSCRIPTIONS"


class SubscriptionExistsError(ConflictError):
    title = "Subscription exists with a different configuration"
    advice = "Use another id, or the configuration that exists, or delete the subscription first."
    protocol_code = "SUBSCRIPTION_ALREADY_EXISTS"


class AlreadyClaimedError(ConflictError):
    """Another worker has the lease of the subscription: `holder`, in the wake with this `generation`."""

    title = "Subscription is claimed by another worker"
    advice = "Wait for the next wake event, or until the lease of the holder ends."
    protocol_code = "ALREADY_CLAIMED"

    def __init__(self, detail: str = "", *, holder: str = "", generation: int | None = None) -> None:
        super().__init__(detail)
        self.holder = holder
        self.generation = generation


class NoPendingWorkError(ConflictError):
    title = "Subscription has no pending events"
    advice = "Wait for the next wake event."
    protocol_code = "NO_PENDING_WORK"


class FencedError(ConflictError):
    """The wake is over: it was done or released, its lease has ended, or another worker has claimed a later one."""

    title = "Wake is over"
    advice = "Stop processing its events and claim the subscription again: another worker may process them now."
    protocol_code = "FENCED"


class InvalidAckError(ConflictError):
    """No ack of the request was applied."""

    title = "Offset cannot be acked"
    advice = "Ack offsets of linked streams that are not before the acked offset and not after the tail."
    protocol_code = "INVALID_OFFSET"


class SequenceGapError(ConflictError):
    title = "Producer sequence gap"
    advice = "Earlier batches of this producer are missing. Start a new producer."

    def __init__(self, detail: str = "", *, expected: int | None = None, received: int | None = None) -> None:
        super().__init__(detail)
        self.expected = expected
        self.received = received


class StreamGoneError(RequestError):
    status = 410
    title = "Stream was deleted"
    advice = "Use another path. This one stays in use until the forks of the stream are deleted."


class ComposeSourceGoneError(RequestError):
    """A range of a source of a compose is gone: it was trimmed or lost in a restore, or the stream was deleted and
    created again. Nothing was appended."""

    status = 410
    title = "Source of a compose is gone"
    advice = "Store the data of the range again, and compose that."


class NotFollowedError(RequestError):
    """A Notify request named a SURL that the table does not follow: it has its own rows, or is a mirror of another
    SURL, or is no longer kept up to date."""

    status = 410
    title = "Not followed"
    advice = "Stop sending Notify requests to this NURL: no follower uses it."


class OffsetGoneError(RequestError):
    status = 410
    title = "Offset is gone"
    advice = "The data there was removed, or the stream was deleted and created again. Read it from its beginning."


class OffsetLostError(OffsetGoneError):
    """The offset is one of data that was lost when the server was restored to an earlier state."""

    title = "Offset was lost in a restore"
    advice = (
        "The server was restored to an earlier state, which does not have the data before this offset. Discard what "
        "was read from the stream, and read it from its beginning."
    )


class OffsetTrimmedError(OffsetGoneError):
    """The offset is before the first data that is there: the rest was removed by retention, a trim or compaction."""

    title = "Offset was trimmed"
    advice = (
        "Data before the first offset was removed. Read the stream from its beginning (offset -1), which is the first "
        "data that is there, and discard what was read before it."
    )

    def __init__(
        self, detail: str = "", *, first: tuple[int, int] | None = None, first_seqno: int | None = None
    ) -> None:
        super().__init__(detail)
        self.first = first  # set by the server: the id that the first position belongs to, and the position
        self.first_offset = ""  # set by the client: the offset of the first data that is there
        self.first_seqno = first_seqno  # of a table: rows with smaller SeqNos are gone


class TailMovedError(RequestError):
    """The stream or table does not end where the request says. The request had no effect."""

    status = 412
    title = "The tail has moved"
    advice = "Read the data that was appended meanwhile, then send the request with the new tail."

    def __init__(self, detail: str = "", *, tail: tuple[int, int] | None = None, last_seqno: int | None = None) -> None:
        super().__init__(detail)
        self.tail = tail  # set by the server: the id that the position belongs to, and the position
        self.offset = ""  # set by the client: the offset at which the stream ends
        self.last_seqno = last_seqno  # for a table: the SeqNo of its last row


class BodyTooLargeError(RequestError):
    status = 413
    title = "Body too large"
    advice = "Send smaller requests, or raise the server's body_bytes_max."


class TooManyMessagesError(BodyTooLargeError):
    title = "Too many messages"
    advice = "Send fewer messages in a request, or raise the server's messages_per_append_max."


class StreamFullError(RequestError):
    status = 413
    title = "Stream is full"
    advice = "Continue in a fork or in a new stream, or raise the server's stream_bytes_max."


class TooManyProducersError(RequestError):
    status = 413
    title = "Too many producers"
    advice = "Use a producer id again, with a higher epoch, instead of a new id, or raise producers_per_stream_max."


class UrlTooLongError(RequestError):
    status = 414
    title = "URL too long"


class UnsupportedEncodingError(RequestError):
    status = 415
    title = "Content encoding not supported"
    advice = "Send the body without a content encoding."


class UnsupportedMediaTypeError(RequestError):
    status = 415
    title = "Content type not supported"
    advice = "Send the body as the content type that the detail names."


class HostNotAllowedError(RequestError):
    status = 421
    title = "Host not allowed"
    advice = "Start the server with --allow-host and the name that clients use for it."


class TooManyRequestsError(RequestError):
    status = 429
    title = "Too many requests"
    advice = "Wait for the time in Retry-After, then send the request again."


class HeadersTooLargeError(RequestError):
    status = 431
    title = "Headers too large"
