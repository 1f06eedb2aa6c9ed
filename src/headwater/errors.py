"""The error tree: each error says its status, whether a retry can help, and what was wrong.

HeadwaterError
├── RequestError                         the request is at fault; nothing changed
│   ├── BadRequestError            400
│   │   ├── InvalidHeaderError     400
│   │   ├── InvalidQueryError      400
│   │   ├── InvalidPathError       400
│   │   ├── InvalidOffsetError     400
│   │   ├── InvalidJsonError       400
│   │   ├── EmptyBodyError         400
│   │   ├── InvalidForkError       400
│   │   └── NewEpochSequenceError  400
│   ├── StaleEpochError            403
│   ├── StreamNotFoundError        404
│   ├── UnknownRouteError          404
│   ├── MethodNotAllowedError      405
│   ├── RequestTimeoutError        408
│   ├── ConflictError              409
│   │   ├── ConfigurationError     409
│   │   ├── PathBlockedError       409
│   │   ├── SourceGoneError        409
│   │   ├── ContentTypeError       409
│   │   ├── StreamClosedError      409
│   │   ├── SequenceRegressionError 409
│   │   └── SequenceGapError       409
│   ├── StreamGoneError            410
│   ├── OffsetGoneError            410
│   ├── BodyTooLargeError          413
│   ├── UrlTooLongError            414
│   └── HeadersTooLargeError       431
└── ServerError                          the server is at fault or in trouble
    ├── InternalError              500
    ├── OverloadedError            503
    ├── StoppingError              503
    └── StorageFullError           507
"""

from __future__ import annotations

from typing import ClassVar


class HeadwaterError(Exception):
    """Anything that Headwater reports to whoever asked."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "", *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.headers = headers

    @property
    def code(self) -> str:
        """The stable name a program can match on: the class name in kebab-case, without Error."""
        name = type(self).__name__.removesuffix("Error")
        return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")


class RequestError(HeadwaterError):
    status = 400
    title = "Bad request"


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


class InvalidJsonError(BadRequestError):
    title = "Invalid JSON"


class EmptyBodyError(BadRequestError):
    title = "Empty body"


class InvalidForkError(BadRequestError):
    title = "Invalid fork"


class NewEpochSequenceError(BadRequestError):
    title = "A new epoch starts at sequence 0"


class StaleEpochError(RequestError):
    status = 403
    title = "Stale producer epoch"


class StreamNotFoundError(RequestError):
    status = 404
    title = "Stream not found"


class UnknownRouteError(RequestError):
    status = 404
    title = "Nothing here"


class MethodNotAllowedError(RequestError):
    status = 405
    title = "Method not allowed"


class RequestTimeoutError(RequestError):
    status = 408
    title = "Request not received in time"
    retryable = True


class ConflictError(RequestError):
    status = 409
    title = "Conflict"


class ConfigurationError(ConflictError):
    title = "Stream exists with a different configuration"


class PathBlockedError(ConflictError):
    title = "Path blocked by a deleted stream that still has forks"


class SourceGoneError(ConflictError):
    title = "Fork source was deleted"


class ContentTypeError(ConflictError):
    title = "Content type does not match the stream"


class StreamClosedError(ConflictError):
    title = "Stream is closed"


class SequenceRegressionError(ConflictError):
    title = "Stream-Seq does not advance"


class SequenceGapError(ConflictError):
    title = "Producer sequence gap"


class StreamGoneError(RequestError):
    status = 410
    title = "Stream was deleted"


class OffsetGoneError(RequestError):
    status = 410
    title = "Offset is gone"


class BodyTooLargeError(RequestError):
    status = 413
    title = "Body too large"


class UrlTooLongError(RequestError):
    status = 414
    title = "URL too long"


class HeadersTooLargeError(RequestError):
    status = 431
    title = "Headers too large"


class ServerError(HeadwaterError):
    """The server cannot answer; the request may be fine."""


class InternalError(ServerError):
    """A defect of ours; the log has the cause."""


class OverloadedError(ServerError):
    status = 503
    title = "Too many writes waiting"
    retryable = True


class StoppingError(ServerError):
    status = 503
    title = "Server is stopping"
    retryable = True


class StorageFullError(ServerError):
    status = 507
    title = "No room to store it"
    retryable = True
