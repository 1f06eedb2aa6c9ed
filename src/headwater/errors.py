"""The error tree. Each error has an HTTP status, a title, advice, and says whether a retry can help.

The server sends these errors as problem documents, and the client raises the same classes. Most programs need five:
NetworkError, StreamNotFoundError, StreamClosedError, StaleEpochError, and HeadwaterError for the rest.

HeadwaterError
├── RequestError                         the request is invalid or was refused; it had no effect
│   ├── BadRequestError            400
│   │   ├── InvalidHeaderError     400
│   │   ├── InvalidQueryError      400
│   │   ├── InvalidPathError       400
│   │   ├── InvalidOffsetError     400
│   │   ├── InvalidJsonError       400
│   │   ├── InvalidChangeError     400
│   │   ├── InvalidNotifyError     400
│   │   ├── EmptyBodyError         400
│   │   ├── MissingContentTypeError 400
│   │   ├── InvalidForkError       400
│   │   └── NewEpochSequenceError  400
│   ├── UnauthorizedError          401
│   ├── ForbiddenError             403
│   ├── StaleEpochError            403
│   ├── OriginNotAllowedError      403
│   ├── TooManyStreamsError        403
│   ├── StreamNotFoundError        404
│   ├── ViewSourceNotFoundError    404
│   ├── UnknownRouteError          404
│   ├── MethodNotAllowedError      405
│   ├── NotAcceptableError         406
│   ├── RequestTimeoutError        408
│   ├── ConflictError              409
│   │   ├── ConfigurationError     409
│   │   ├── PathBlockedError       409
│   │   ├── SourceGoneError        409
│   │   ├── ContentTypeError       409
│   │   ├── StreamClosedError      409
│   │   ├── DocumentConflictError  409
│   │   ├── SequenceRegressionError 409
│   │   ├── SeqNoRegressionError   409
│   │   ├── MirrorMismatchError    409
│   │   ├── ViewTooLargeError      409
│   │   ├── TooManyNurlsError      409
│   │   ├── TooManyViewsError      409
│   │   └── SequenceGapError       409
│   ├── StreamGoneError            410
│   ├── NotFollowedError           410
│   ├── OffsetGoneError            410
│   ├── TailMovedError             412
│   ├── BodyTooLargeError          413
│   │   └── TooManyMessagesError   413
│   ├── StreamFullError            413
│   ├── UrlTooLongError            414
│   ├── UnsupportedEncodingError   415
│   ├── UnsupportedMediaTypeError  415
│   ├── HostNotAllowedError        421
│   ├── TooManyRequestsError       429
│   └── HeadersTooLargeError       431
├── ServerError                          the server failed, or cannot take requests now
│   ├── InternalError              500
│   ├── DamagedDataError           500
│   ├── NotReadyError              503
│   ├── OverloadedError            503
│   ├── StoppingError              503
│   └── StorageFullError           507
├── OutboundError                        a request from the server to a URL that a client gave failed
│   ├── TargetRefusedError         403   the server does not send requests to this URL; nothing was sent
│   ├── TargetUnreachableError           no connection, no answer in time, or the connection was lost
│   └── TargetAnswerError                the target sent a response that the server does not accept
│       └── RedirectRefusedError         the target sent a redirect
└── ClientError                          raised by the client, not sent by the server
    ├── NetworkError                     the connection failed, timed out or was lost
    ├── ProtocolError                    the response does not follow the protocol
    │   ├── InvalidRowError              a line of a table's response is not a row
    │   ├── RowOrderError                rows of a table came out of order
    │   ├── MissingRowError              a table that promises gapless SeqNos lacks a row
    │   ├── HistoryChangedError          a table restarted its numbering, or has other rows than before
    │   │   └── RowsGoneError            a table has fewer rows than before
    │   ├── SchemaChangedError           a table has another schema or version than before
    │   └── RedirectError                a SURL was redirected
    ├── ProducerReusedError              the server took new messages for duplicates
    ├── MessageError                     a message cannot be decoded to the type that the reader asked for
    │   └── InvalidEventError            a message is not a state event, or its value does not match the schema
    ├── OptionError                      an option of the server, a job, a source or a sink is missing or invalid
    ├── SchemaError                      a DataFrame has other columns than the source or sink needs
    ├── BatchReusedError                 a batch number or writeId was used before for other rows
    ├── ReplayError                      the target of a replay has other content than the archive
    ├── JobConflictError                 another run of the same job is active, or committed first
    └── DataLossError                    data that a query still had to read or publish was deleted
"""

from __future__ import annotations

from typing import ClassVar, Literal

from headwater.positions import Position


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later, given the status of the response."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


class HeadwaterError(Exception):
    """Base class of all errors that Headwater reports.

    `retryable` follows from `status`, unless a class or an instance sets it. The client also sets `url`, `attempts`,
    and `nothing_done`, which is True if the request certainly had no effect.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        try:
            client.stream("nowhere").read().all()
        except StreamNotFoundError as error:
            print(error.status, error.retryable, error.advice)
    ```
    """

    status: int = 500
    title: ClassVar[str] = "Internal error"
    retryable: bool = is_retryable(status)
    advice: ClassVar[str] = "Look at the server's log."

    def __init_subclass__(cls) -> None:
        if "status" in vars(cls) and "retryable" not in vars(cls):
            cls.retryable = is_retryable(cls.status)
        cls.__doc__ = cls.__doc__ or f"{cls.title}. {cls.advice}"

    def __init__(self, detail: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.url = ""
        self.attempts = 1
        self.nothing_done = False
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        if not self.url:
            return self.detail or self.title
        return f"{self.title}: {self.detail} ({self.url})" if self.detail else f"{self.title} ({self.url})"

    @property
    def code(self) -> str:
        """A stable name that programs can match on: the class name in kebab-case, without `Error`."""
        name = type(self).__name__.removesuffix("Error")
        return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


class RequestError(HeadwaterError):
    status = 400
    title = "Bad request"
    advice = "Correct the request; the server refuses it every time."


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


class NewEpochSequenceError(BadRequestError):
    title = "A new epoch starts at sequence 0"
    advice = "The server no longer knows this producer. Start a new one."


class UnauthorizedError(RequestError):
    status = 401
    title = "Not authenticated"
    advice = "Send a valid token; headwater token add makes one, and the commands read it from HEADWATER_TOKEN."


class ForbiddenError(RequestError):
    status = 403
    title = "Not allowed"
    advice = "Ask the operator for a token with the missing scope."


class StaleEpochError(RequestError):
    status = 403
    title = "Stale producer epoch"
    advice = "Another producer with this id has taken over. Stop, or claim a higher epoch."

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


class StreamNotFoundError(RequestError):
    status = 404
    title = "Stream not found"
    advice = "Create the stream or table, or correct its URL."


class ViewSourceNotFoundError(RequestError):
    status = 404
    title = "Source of the view not found"
    advice = "Create the source before the view, or correct the path of the source."


class UnknownRouteError(RequestError):
    status = 404
    title = "Unknown URL"


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
    advice = "Use another path, or the configuration that the stream has."


class PathBlockedError(ConflictError):
    title = "Path blocked by a deleted stream that still has forks"


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


class TooManyNurlsError(ConflictError):
    title = "Too many NURLs"
    advice = "Withdraw NURLs that are no longer needed, or raise nurls_per_table_max or nurls_max."


class TooManyViewsError(ConflictError):
    title = "Too many views"
    advice = "Delete views that are no longer needed, or raise the server's views_max."


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


class NotFollowedError(RequestError):
    """A Notify request was sent to the NURL of a mirror that the server does not keep up to date (any more)."""

    status = 410
    title = "Not followed"
    advice = "Stop sending Notify requests to this NURL: no follower uses it."


class OffsetGoneError(RequestError):
    status = 410
    title = "Offset is gone"
    advice = "The stream was deleted and created again. Read it from its beginning."


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


class ServerError(HeadwaterError):
    """The server cannot process the request, which may be valid."""

    advice = "Try again later."


class InternalError(ServerError):
    """A bug in Headwater. The server's log has the cause."""


class DamagedDataError(ServerError):
    status = 500
    title = "Stored data is damaged"
    advice = "Stop the server, check the directory with: headwater check, and restore it from a backup."


class NotReadyError(ServerError):
    status = 503
    title = "Server is not ready"


class OverloadedError(ServerError):
    status = 503
    title = "Server is overloaded"


class StoppingError(ServerError):
    status = 503
    title = "Server is stopping"


class StorageFullError(ServerError):
    status = 507
    title = "Disk is full"
    advice = "Free disk space on the server or add more, then try again."


class OutboundError(HeadwaterError):
    """A request from the server to a URL that a client gave failed. `status` is 0 if there was no response."""

    status = 0
    title = "The request to the target failed"
    advice = "Check the URL, and that its server works."


class TargetRefusedError(OutboundError):
    status = 403
    title = "Target refused"
    advice = "Use an https URL of a public server; docs/operations.md lists which targets are refused."


class TargetUnreachableError(OutboundError):
    """The target could not be reached. `how` has the same values as in NetworkError."""

    title = "Target did not answer"
    retryable = True
    advice = "Check that the target's server runs. The request may or may not have arrived."

    def __init__(self, detail: str = "", *, how: Literal["connect", "timeout", "lost"] = "lost") -> None:
        super().__init__(detail)
        self.how = how


class TargetAnswerError(OutboundError):
    title = "Answer of the target refused"
    advice = "Change the target so that it answers without redirects and content encodings, and within the limits."


class RedirectRefusedError(TargetAnswerError):
    title = "Target redirects"
    advice = "Redirects are not followed. If you trust the URL that the target redirects to, use it instead."

    def __init__(self, detail: str = "", *, location: str = "") -> None:
        super().__init__(detail)
        self.location = location


class ClientError(HeadwaterError):
    """Raised by the client. `status` is 0, because the error did not come from the server."""

    status = 0
    title = "The client failed"
    advice = "The detail names the cause: a hook of yours, or the client was closed."


class NetworkError(ClientError):
    """No response arrived.

    `how` is "connect" if no connection could be made, so that nothing was sent; "timeout" if the response took too
    long; "lost" if the connection was lost.
    """

    how: Literal["connect", "timeout", "lost"] = "lost"
    title = "No answer"
    retryable = True
    advice = "Check the URL and that the server runs. What was sent may or may not have arrived."


class ProtocolError(ClientError):
    title = "Not a Durable Streams answer"
    advice = "Check that the URL is that of a stream, and that no proxy answers in place of the server."


class InvalidRowError(ProtocolError):
    """A line of a table's response is not a row. `line` is its number, counted from 1; the rows before it are valid."""

    title = "Not a valid row"
    advice = "Check that the URL is that of a table. If it is, the server of the table has a bug."

    def __init__(self, detail: str = "", *, line: int = 0) -> None:
        super().__init__(detail)
        self.line = line


class RowOrderError(ProtocolError):
    """A row arrived after a row with a larger SeqNo, which was already delivered."""

    title = "Rows out of order"
    advice = "The server of the table has a bug: it must send rows in the order of their SeqNos."


class MissingRowError(ProtocolError):
    """The rows before the missing one were delivered, those after it were not."""

    title = "A row is missing"
    advice = "Ask the operator of the table's server for the row. To skip it, follow with its SeqNo as since_id."


class HistoryChangedError(ProtocolError):
    """The table no longer has the rows that were delivered."""

    title = "The table's history changed"
    advice = "The table was restored, or deleted and created again. Read it from its beginning."


class RowsGoneError(HistoryChangedError):
    """The table has fewer rows than were delivered. If it is being filled again, a later read may succeed."""


class SchemaChangedError(ProtocolError):
    title = "The table's schema changed"
    advice = "Check the meaning of the new records, then follow the table from the last row."


class RedirectError(ProtocolError):
    title = "The address was redirected"
    advice = "Redirects of tables are not followed. If the new address is right, use it instead of the old one."


class ProducerReusedError(ClientError):
    """The server took new messages for duplicates of earlier ones, so they are not stored."""

    title = "The producer's id and epoch were used before"
    advice = "Start the producer with a higher epoch, with auto_claim=True, or without an id."


class MessageError(ClientError):
    """A message cannot be decoded. `position` is its position in the stream."""

    title = "Unexpected message"
    advice = "Continue after the message, with offset=error.position and skip=1, or ask for another type."

    def __init__(self, detail: str = "", position: Position | None = None) -> None:
        super().__init__(detail)
        self.position = position or Position("")

    @property
    def offset(self) -> str:
        return self.position.offset

    @property
    def skip(self) -> int:
        return self.position.skip


class InvalidEventError(MessageError):
    title = "Not a valid state event"
    advice = "Correct the program that writes it. To continue without it, skip bad events or pass a callback for them."


class OptionError(ClientError):
    title = "Invalid option"
    advice = (
        "Correct the option; docs/operations.md lists those of the server, docs/spark.md and docs/pipeline.md others."
    )


class SchemaError(ClientError):
    title = "The schema does not fit"
    advice = "Select, rename or cast the columns."


class BatchReusedError(ClientError):
    """The rows of a batch were not written: its number was used before for other rows or another target."""

    title = "Batch was written before with other rows"
    advice = "Restore the checkpoint, or start with a new one. Use each writeId for one write only."


class ReplayError(ClientError):
    title = "The target has other content than the archive"
    advice = "Replay to another path, or delete the target first."


class JobConflictError(ClientError):
    title = "Another run of this job is active, or committed first"
    advice = "Run a job once at a time, and give each job its own checkpoint."


class DataLossError(ClientError):
    title = "Data was lost"
    advice = "Find out what deleted it. With failOnDataLoss=false, a source continues with the data that is left."
