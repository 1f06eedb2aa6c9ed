"""ClientError: raised by the client, the Spark formats and the jobs."""

from __future__ import annotations

from typing import Literal

from headwater.errors.base import HeadwaterError
from headwater.positions import Position


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
    title = "No response"
    retryable = True
    advice = "Check the URL and that the server runs. The request may or may not have arrived."


class ProtocolError(ClientError):
    title = "Not a Durable Streams response"
    advice = "Check that the URL is that of a stream, and that no proxy responds instead of the server."


class MissingExtensionError(ProtocolError):
    """The server does not have an extension of Headwater that a request needs."""

    title = "The server lacks an extension"
    advice = "Use a Headwater server, or do without what needs the extension."


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


class WebhookSignatureError(ClientError):
    """A webhook is not from the server whose keys the receiver trusts, or was changed, or is too old."""

    title = "Webhook signature is not valid"
    advice = "Do not process the request; respond with 401. Check the URL of the keys and the clock of this machine."


class UnknownSigningKeyError(WebhookSignatureError):
    """The key that a webhook names is not among the keys of the server."""


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


class SchemaMismatchError(ClientError):
    """Most of a stream does not match the schemas of a state, which would be empty or out of date."""

    title = "The state does not match its schemas"
    advice = (
        "Give new fields a default, or upgrade old values in a function as schema: docs/schemas.md. "
        "To continue without them, pass on_bad_event='skip' or a callback."
    )


class ForkedError(ClientError):
    """The object was made before `fork()` and cannot be used in the child process. The parent can still use it."""

    title = "Made in the parent process"
    advice = "Make a new one in the child process, for example in gunicorn's post_fork or Celery's worker_process_init."


class OptionError(ClientError):
    title = "Invalid option"
    advice = (
        "Correct the option; docs/reference lists those of the server and of Spark, docs/pipeline.md those of jobs."
    )


class MissingExtraError(ClientError):
    title = "A package is missing"
    advice = "Install it with: pip install '.[sql]' in a checkout of Headwater."


class SqlError(ClientError):
    """A query cannot be run."""

    title = "The query failed"
    advice = "See: headwater sql --help."


class SqlDataError(SqlError):
    """A message does not fit the type of its column, or an expression cannot be computed."""


class SparkStartError(ClientError):
    title = "Spark did not start"
    advice = "Check that the master of Spark runs and that this machine has memory for it, then try again."
    retryable = True


class SchemaError(ClientError):
    title = "The schema does not fit"
    advice = "Select, rename or cast the columns."


class PartialWriteError(SchemaError):
    """A target refused rows of a batch after it may have accepted others of the same batch."""

    title = "A batch may be written in part"
    advice = "Let the target accept the rows that it refused, and run the job again: it appends the rest."


class UnsupportedTableError(ClientError):
    title = "The Delta table uses a feature that is not supported"
    advice = "Drop the feature with ALTER TABLE … DROP FEATURE, or copy the rows to a table without it."


class BatchReusedError(ClientError):
    """The rows of a batch were not written: its number was used before for other rows or another target."""

    title = "Batch was written before with other rows"
    advice = "Restore the checkpoint, or start with a new one. Use each writeId for one write only."


class IncompleteArchiveError(ClientError):
    """An archive lacks rows of a stream, or has two versions of them. Nothing was written."""

    title = "The archive is not complete"
    advice = "Archive the streams from their beginning into a new table, or replay what exists with --allow-gaps."


class CheckpointMismatchError(ClientError):
    """A checkpoint does not belong to a table, or a table to another one. Nothing was written."""

    title = "The checkpoint and the tables do not belong together"
    advice = "Restore what is missing. To start over, delete the checkpoint and all tables of the job."


class ReplayError(ClientError):
    title = "The target has other content than the archive"
    advice = "Replay to another path, or delete the target first."


class JobConflictError(ClientError):
    title = "Another run of this job is active, or committed first"
    advice = "Run a job once at a time, and give each job its own checkpoint."


class DataLossError(ClientError):
    title = "Data was lost"
    advice = "Find out what deleted it. With failOnDataLoss=false, a source continues with the data that is left."
