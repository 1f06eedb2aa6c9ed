"""The error tree: each error says its status, whether a retry can help, what was wrong and what to do about it.

The server answers with these and the client raises them again, so that both sides speak of one thing. Most programs
need five: NetworkError, StreamNotFoundError, StreamClosedError, StaleEpochError, and HeadwaterError for the rest.

HeadwaterError
├── RequestError                         the request is at fault; nothing changed
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
├── ServerError                          the server is at fault or in trouble
│   ├── InternalError              500
│   ├── DamagedDataError           500
│   ├── NotReadyError              503
│   ├── OverloadedError            503
│   ├── StoppingError              503
│   └── StorageFullError           507
├── OutboundError                        a request of the server to a URL that someone else named failed
│   ├── TargetRefusedError         403   the server does not call this URL; nothing was sent
│   ├── TargetUnreachableError           no connection, no answer in time, or the connection was lost
│   └── TargetAnswerError                answered, but not in a way that the server accepts
│       └── RedirectRefusedError         answered with a redirect
└── ClientError                          no answer to blame: found on the client's side
    ├── NetworkError                     the request or its answer was lost on the way
    ├── ProtocolError                    answered, but not as the protocol says
    │   ├── InvalidRowError              a line of a table's answer is no row
    │   ├── RowOrderError                rows of a table came out of order
    │   ├── MissingRowError              a table that promises gapless SeqNos lacks a row
    │   ├── HistoryChangedError          a table restarted its numbering, or has other rows than before
    │   │   └── RowsGoneError            a table has fewer rows than before
    │   ├── SchemaChangedError           a table has another schema or version than before
    │   └── RedirectError                a SURL was redirected
    ├── ProducerReusedError              new messages were taken for repeats
    ├── MessageError                     a message is not what the reader asked for
    │   └── InvalidEventError            a message is no state event, or its value does not fit the schema
    ├── OptionError                      an option of the server, a job, a source or a sink is missing or makes no sense
    ├── SchemaError                      a DataFrame's columns are not what a source gives or a sink takes
    ├── BatchReusedError                 a batch number or writeId was used before for other rows
    ├── ReplayError                      the target of a replay has other content than the archive
    ├── JobConflictError                 another run of the same job is at work, or was faster
    └── DataLossError                    what a query had yet to read or to publish is gone
"""

from __future__ import annotations

from typing import ClassVar, Literal

from headwater.positions import Position


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later, by the status of its answer."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


class HeadwaterError(Exception):
    """Anything that Headwater reports to whoever asked.

    `retryable` follows from `status`, unless a class or an instance says otherwise. The rest is set on the client's
    side, where the request is known; `nothing_done` if it certainly had no effect.

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
        """The stable name a program can match on: the class name in kebab-case, without Error."""
        name = type(self).__name__.removesuffix("Error")
        return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


class RequestError(HeadwaterError):
    status = 400
    title = "Bad request"
    advice = "Correct the request: as it is, it will always be refused."


class BadRequestError(RequestError):
    """Malformed in a way that no other error names."""


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
    """`line` is the number of the first line of the body that is not a change, from 1."""

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
    advice = "The server no longer knows this producer: start a new one."


class UnauthorizedError(RequestError):
    status = 401
    title = "Not authenticated"
    advice = "Give a valid token; headwater token add makes one, and the command line takes it from HEADWATER_TOKEN."


class ForbiddenError(RequestError):
    status = 403
    title = "Not allowed"
    advice = "Ask the operator for a token with the scope that is missing."


class StaleEpochError(RequestError):
    status = 403
    title = "Stale producer epoch"
    advice = "Another producer with this id has taken over. Stop, or claim a higher epoch."

    def __init__(self, detail: str = "", *, epoch: int | None = None) -> None:
        super().__init__(detail)
        self.epoch = epoch  # the one that is in force


class OriginNotAllowedError(RequestError):
    status = 403
    title = "Origin not allowed"
    advice = "Start the server with --allow-origin and the origin of the page."


class TooManyStreamsError(RequestError):
    status = 403
    title = "Too many streams"
    advice = "Delete streams that are no longer needed, or have the operator raise streams_max."


class StreamNotFoundError(RequestError):
    status = 404
    title = "Stream not found"
    advice = "Create the stream or table, or correct its URL."


class ViewSourceNotFoundError(RequestError):
    status = 404
    title = "Source of the view not found"
    advice = "Create the stream or table before the view of it, or correct its URL path."


class UnknownRouteError(RequestError):
    status = 404
    title = "Nothing here"


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
    advice = "Use another path, or create it with the configuration it has."


class PathBlockedError(ConflictError):
    title = "Path blocked by a deleted stream that still has forks"


class SourceGoneError(ConflictError):
    title = "Fork source was deleted"


class ContentTypeError(ConflictError):
    title = "Content type does not match the stream"
    advice = "Send what the stream's content type says."


class StreamClosedError(ConflictError):
    title = "Stream is closed"
    advice = "Nothing can be appended any more. Continue in a fork or in a new stream."

    def __init__(self, detail: str = "", *, tail: tuple[int, int] | None = None) -> None:
        super().__init__(detail)
        self.tail = tail  # where the stream ends: the id that numbers the position, and the position


class DocumentConflictError(ConflictError):
    title = "Document was changed by someone else"
    advice = "Read the document again and decide anew."


class SequenceRegressionError(ConflictError):
    title = "Stream-Seq does not advance"
    advice = "Another writer is ahead. Read what it wrote before you go on."


class SeqNoRegressionError(ConflictError):
    title = "Rows are out of order"
    advice = "Append rows with SeqNos that increase, from after the last row of the table on."


class MirrorMismatchError(ConflictError):
    """Rows for a mirror that leave a row out, or differ from rows that it has."""

    title = "Rows do not fit the mirror"
    advice = "Go on after the mirror's last row. If the source was made again, mirror it into another table."


class ViewTooLargeError(ConflictError):
    title = "Too many live keys"
    advice = "Read all rows instead of the active view, or have the operator raise the limit."


class TooManyNurlsError(ConflictError):
    title = "Too many NURLs"
    advice = "Withdraw NURLs that are no longer needed, or raise the limit."


class TooManyViewsError(ConflictError):
    title = "Too many views"
    advice = "Delete views that are no longer needed, or raise the limit."


class SequenceGapError(ConflictError):
    title = "Producer sequence gap"
    advice = "Earlier batches of this producer are missing: start a new one."

    def __init__(self, detail: str = "", *, expected: int | None = None, received: int | None = None) -> None:
        super().__init__(detail)
        self.expected = expected
        self.received = received


class StreamGoneError(RequestError):
    status = 410
    title = "Stream was deleted"
    advice = "Use another path: this one is kept by its forks."


class NotFollowedError(RequestError):
    """A Notify named a SURL at the NURL of a mirror that is not, or no longer, kept up to date."""

    status = 410
    title = "Not followed"
    advice = "Stop notifying this NURL: nobody follows the table through it."


class OffsetGoneError(RequestError):
    status = 410
    title = "Offset is gone"
    advice = "The stream was deleted and made again: read it from its beginning."


class TailMovedError(RequestError):
    """The stream or table does not end where the request says. Nothing was done."""

    status = 412
    title = "The tail has moved"
    advice = "Read what was appended meanwhile, decide anew, and name the tail as it is now."

    def __init__(self, detail: str = "", *, tail: tuple[int, int] | None = None, last_seqno: int | None = None) -> None:
        super().__init__(detail)
        self.tail = tail  # on the server's side: the id that numbers the position, and the position
        self.offset = ""  # on the client's side: where the stream ends
        self.last_seqno = last_seqno  # of a table


class BodyTooLargeError(RequestError):
    status = 413
    title = "Body too large"
    advice = "Send less at once, or raise the server's body_bytes_max."


class TooManyMessagesError(BodyTooLargeError):
    title = "Too many messages"
    advice = "Send fewer messages at once, or raise the server's messages_per_append_max."


class StreamFullError(RequestError):
    status = 413
    title = "Stream is full"
    advice = "Go on in a fork or in a new stream, or have the operator raise stream_bytes_max."


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
    advice = "Wait as long as Retry-After says, then send it again."


class HeadersTooLargeError(RequestError):
    status = 431
    title = "Headers too large"


class ServerError(HeadwaterError):
    """The server cannot answer; the request may be fine."""

    advice = "Try again later."


class InternalError(ServerError):
    """A defect of ours; the log has the cause."""


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
    title = "No room to store it"
    advice = "Give the server more disk, then try again."


class OutboundError(HeadwaterError):
    """Found by the server when it called a URL that someone else named; no status was answered."""

    status = 0
    title = "The request to the target failed"
    advice = "Check the URL and that its server works."


class TargetRefusedError(OutboundError):
    status = 403
    title = "Target refused"
    advice = "Give an https URL of a public server; docs/operations.md lists what is refused."


class TargetUnreachableError(OutboundError):
    """`how` is as in NetworkError."""

    title = "Target did not answer"
    retryable = True
    advice = "Check that the target's server runs. What was sent may or may not have arrived."

    def __init__(self, detail: str = "", *, how: Literal["connect", "timeout", "lost"] = "lost") -> None:
        super().__init__(detail)
        self.how = how


class TargetAnswerError(OutboundError):
    title = "Answer of the target refused"
    advice = "Have the target answer without redirects and content encodings, and within the limits."


class RedirectRefusedError(TargetAnswerError):
    title = "Target redirects"
    advice = "Give the URL that the target redirects to, if you trust it: redirects are not followed."

    def __init__(self, detail: str = "", *, location: str = "") -> None:
        super().__init__(detail)
        self.location = location


class ClientError(HeadwaterError):
    """Found on the client's side; no status was answered."""

    status = 0
    title = "The client failed"
    advice = "The detail names the cause: a hook of yours, or the client was closed."


class NetworkError(ClientError):
    """`how` says what was lost: the attempt to connect, so that nothing was sent; patience; or the connection."""

    how: Literal["connect", "timeout", "lost"] = "lost"
    title = "No answer"
    retryable = True
    advice = "Check the URL and that the server runs. What was sent may or may not have arrived."


class ProtocolError(ClientError):
    title = "Not a Durable Streams answer"
    advice = "Check that the URL is a stream's and that no proxy answers in its place."


class InvalidRowError(ProtocolError):
    """`line` is the number of the line in the answer, from 1; the rows before it are good."""

    title = "Not a valid row"
    advice = "Check that the URL is a table's. If it is, its server has to be corrected."

    def __init__(self, detail: str = "", *, line: int = 0) -> None:
        super().__init__(detail)
        self.line = line


class RowOrderError(ProtocolError):
    """A row came after one with a larger SeqNo, which was delivered already."""

    title = "Rows out of order"
    advice = "The server of the table has to be corrected: rows come in the order of their SeqNos."


class MissingRowError(ProtocolError):
    """The rows before the missing one were delivered, those after it were not."""

    title = "A row is missing"
    advice = "Ask whoever serves the table for the row. To do without it, follow from its SeqNo on."


class HistoryChangedError(ProtocolError):
    """Rows that were delivered are no longer those that the table has."""

    title = "The table's history changed"
    advice = "The table was restored, or deleted and made again: read it from its beginning."


class RowsGoneError(HistoryChangedError):
    """The table has fewer rows than were delivered. One that is being filled again will have them."""


class SchemaChangedError(ProtocolError):
    title = "The table's schema changed"
    advice = "Check what the new records mean, then follow the table from the last row."


class RedirectError(ProtocolError):
    title = "The address was redirected"
    advice = "Redirects of tables are not followed. If the new address is right, use it in place of the old one."


class ProducerReusedError(ClientError):
    """The server took new messages for repeats of others: they are not stored."""

    title = "The producer's id and epoch were used before"
    advice = "Start the producer with a higher epoch, with auto_claim=True, or without an id."


class MessageError(ClientError):
    """A message that cannot be decoded, and its position."""

    title = "Unexpected message"
    advice = "Read on behind it, with offset=error.position and skip=1, or ask for another type."

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
    advice = "Mend its producer. To read on without it, skip bad events or have them sent to a callback."


class OptionError(ClientError):
    title = "Invalid option"
    advice = (
        "Correct it; docs/operations.md lists the options of the server, docs/spark.md and docs/pipeline.md others."
    )


class SchemaError(ClientError):
    title = "The schema does not fit"
    advice = "Select, rename or cast the columns."


class BatchReusedError(ClientError):
    """The rows of a batch were not written: its number stands for other rows, or for another target."""

    title = "Batch was written before with other rows"
    advice = "Restore the checkpoint, or begin with a new one. Give each write with a writeId an id of its own."


class ReplayError(ClientError):
    title = "The target has other content than the archive"
    advice = "Replay to another path, or delete the target first."


class JobConflictError(ClientError):
    title = "Another run of this job is at work, or was faster"
    advice = "Run a job once at a time, with a checkpoint of its own."


class DataLossError(ClientError):
    title = "Data was lost"
    advice = "Find out what deleted it. Sources go on with what is there if failOnDataLoss is false."
