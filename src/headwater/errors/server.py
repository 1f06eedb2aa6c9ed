"""ServerError: the server failed or cannot take requests. OutboundError: a request that the server sent failed."""

from __future__ import annotations

from typing import Literal

from headwater.errors.base import HeadwaterError


class ServerError(HeadwaterError):
    """The server cannot process the request, which may be valid."""

    title = "The server failed"
    advice = "Try again later."


class InternalError(ServerError):
    """A bug in Headwater. The server's log has the cause."""

    title = "Internal error"


class UnknownOutcomeError(ServerError):
    """The server failed while it stored a change, so the change may be stored or not. `retryable` is False, because a
    repeated append could be stored twice. With producer headers a repeat is safe: the server recognises a duplicate."""

    status = 500
    title = "Outcome of the write is unknown"
    retryable = False
    outcome_unknown = True
    advice = "Repeat the request if it has producer headers; otherwise read the tail first to see if it was stored."


class OutcomePendingError(UnknownOutcomeError):
    """The database of the servers does not answer, so it is not known yet whether a change is stored. `retryable` is
    False, as for its base; with producer headers every server recognises a repeat."""

    status = 503
    title = "Outcome of the write is not known yet"
    retryable = False


class DamagedDataError(ServerError):
    """Data of one stream or document does not match its checksum. It is not served; other streams are."""

    status = 500
    title = "Stored data is damaged"
    retryable = False
    advice = "Stop the server, check the directory with: headwater check, and restore it from a backup."


class NotReadyError(ServerError):
    status = 503
    title = "Server is not ready"


class OverloadedError(ServerError):
    status = 503
    title = "Server is overloaded"


class OutOfMemoryError(OverloadedError):
    """An allocation failed while the request was handled, before anything was stored."""

    title = "Server is out of memory"


class TransferEncodingError(ServerError):
    status = 501
    title = "Transfer encoding not supported"
    advice = "Send the body with Content-Length, or with Transfer-Encoding: chunked alone."


class StoppingError(ServerError):
    status = 503
    title = "Server is stopping"


class LeaseLostError(ServerError):
    """The server was started with a lease (`--lease`) and does not hold it.

    A client may retry, as after NOT_LEADER of Kafka: nothing was written, and the name that it uses soon leads to the
    promoted server, or the lease is renewed. A client that cannot reach another server fails when its patience ends.
    """

    status = 503
    title = "Server may not take writes"
    advice = "Use the server that was promoted. If there is none, make the target of the lease reachable."


class UnavailableError(ServerError):
    """The database of a shared store cannot be reached, or does not take writes. A write that was refused with this
    error is not stored."""

    status = 503
    title = "Database is not available"


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

    title = "Target did not respond"
    retryable = True
    advice = "Check that the target's server runs. The request may or may not have arrived."

    def __init__(self, detail: str = "", *, how: Literal["connect", "timeout", "lost"] = "lost") -> None:
        super().__init__(detail)
        self.how = how


class TargetAnswerError(OutboundError):
    title = "Response of the target refused"
    advice = "Change the target so that it responds without redirects and content encodings, and within the limits."


class RedirectRefusedError(TargetAnswerError):
    title = "Target redirects"
    advice = "Redirects are not followed. If you trust the URL to which the target redirects, use it instead."

    def __init__(self, detail: str = "", *, location: str = "") -> None:
        super().__init__(detail)
        self.location = location
