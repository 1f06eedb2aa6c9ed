"""Every bound of the system, in one place; the unit is the last word of the name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

# The protocol's own numbers.
PRODUCER_INTEGER_MAX = 2**53 - 1  # what a JavaScript peer can hold
OFFSET_DIGITS = 16
CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 20
CURSOR_JITTER_MAX_S = 3_600
CURSOR_LENGTH_MAX = 64
CACHE_MAX_AGE_S = 60
CACHE_STALE_S = 300
CACHE_LASTING_S = 365 * 86_400  # of an answer that never changes
COMPRESS_BYTES_MIN = 1_024
ENCODERS_MAX = 64  # of answers that come in pieces, at a time; further answers are not compressed

BODY_PIECE_BYTES = 128 * 1024  # of a large body, written in one step
SSE_PIECE_BYTES = 48 * 1024  # of a stream, encoded in one step; a multiple of 3, for base64
SSE_PIECES_KEPT = 2  # of an event that several readers are at
TURNS_S = 0.005  # of large answers that are written in one turn of the loop
SSE_JOIN_BYTES_MAX = 4 * 1024  # data and control of a smaller event are one write, of a larger one two

# What a request may name.
PATH_BYTES_MAX = 1_024
PATH_SEGMENT_BYTES_MAX = 255
PATHS_CACHED_MAX = 65_536  # resolved paths
ADDRESSES_CACHED_MAX = 4_096  # of clients, with what they count as
FORWARDED_MAX = 16  # proxies that a request went through, looked at from the last one on
HOSTS_KNOWN_MAX = 1_024  # names of this server that requests came under
CACHED_TEXT_LENGTH_MAX = 256  # of what clients send: longer text is parsed each time
HEADER_VALUE_BYTES_MAX = 1_024  # Stream-Seq, Producer-Id, Content-Type: values that are kept
TTL_S_MAX = 100 * 366 * 86_400
FORK_DEPTH_MAX = 128
PRODUCER_IDLE_S = 30 * 86_400  # after which a stream forgets the sequence of a producer, but not its epoch
PRODUCERS_EXPIRED_EVERY = 1_024  # new producers of a stream, between two looks for idle ones
LIST_PAGE_MAX = 1_000
LIST_PAGE_DEFAULT = 100
RECORDS_PAGE_MAX = 10_000
RECORDS_PAGE_DEFAULT = 1_000
SPLITS_MAX = 10_000

# Access: tokens, JWTs and signed URLs.
AUTH_FILE_BYTES_MAX = 16 * 1024 * 1024
AUTH_HEADER_LENGTH_MAX = 16 * 1024  # of credentials; longer ones are refused unread
AUTH_CALLERS_CACHED_MAX = 4_096  # credentials that were checked and need no second check
AUTH_DECISIONS_CACHED_MAX = 1_024  # of one caller: an action on a path
AUTH_CHECK_S = 0.5  # between two looks whether those who read live still may
AUTH_SCOPES_MAX = 256  # of one token
AUTH_SCOPE_LENGTH_MAX = 1_100
AUTH_SCOPE_STARS_MAX = 2  # `**` in a glob, and `*` in one of its segments: nobody needs more, and each costs time
AUTH_NAME_LENGTH_MAX = 128  # of an identity
AUTH_LEEWAY_S = 30  # that the clock of an issuer may be ahead
AUTH_KEYS_MAX = 64  # of one issuer
AUTH_RSA_BITS_MIN = 2_048
AUTH_SECRET_BYTES_MIN = 32  # of HS256, and of the secret that signs URLs
AUTH_JWKS_REFRESH_S = 300.0
AUTH_JWKS_ASKED_S = 30.0  # at least between two requests for keys because a token names an unknown one
AUTH_JWKS_RETRY_S = 1.0  # after the first failure; then twice as long each time, up to AUTH_JWKS_REFRESH_S
SIGNED_URL_S = 3_600
SIGNED_URL_S_MAX = 7 * 86_400

# Tables: what a row, a query and a Notify form may have.
SEQNO_MAX = 2**63 - 1  # what a 64-bit peer can hold
SIZE_DIGITS_MAX = 18  # of a size in a header; more is no size
SEQNO_DIGITS_MAX = 19
ROW_BYTES_MAX = 1024 * 1024  # that a client takes for one row, its newline not counted
CHANGE_BYTES_MAX = ROW_BYTES_MAX - 64  # of a line that is appended: SeqNo and timestamp come before it in the row
CHANGE_OVERHEAD_BYTES = 4  # of a line: action, tabs and newline
KEY_BYTES_MAX = 1_024
SCHEMA_LENGTH_MAX = 128
SCHEMA_VERSION_DIGITS_MAX = 9
ROW_PIECES_KEPT = 16  # of what live readers of tables catch up with, for others that are at about the same place
TABLE_TIMEOUT_S = 30.0  # that a read is held open, if the query names no other time
TABLE_TIMEOUT_MAX_S = 300.0
TABLE_IDLE_S = 10.0  # without a new row, after which a read ends
TABLE_IDLE_MAX_S = 300.0
CHANGES_INLINE_BYTES = 1024 * 1024  # of a body that is checked at once; a larger one is checked in a thread
ROWS_INLINE_BYTES = 64 * 1024  # of rows for a mirror, the same
CHANGES_MAX = 100_000  # in one append: numbering them must not hold the loop
NOTIFY_BODY_BYTES_MAX = 64 * 1024
NOTIFY_NURLS_MAX = 64  # in one form
EVENT_TYPE_LENGTH_MAX = 64
URL_LENGTH_MAX = 2_048  # of a SURL or a NURL
NURL_SEEN_MS = 86_400_000  # after which it is recorded that a NURL was advertised again
NOTIFY_ANSWER_S = 10.0  # that a NURL may take to answer
NOTIFY_POSTS_PER_HOST_MAX = 8  # at a time, so that a slow host does not hold up the others
NOTIFY_ANSWER_BYTES_MAX = 64 * 1024  # of the answer of a NURL, which nobody reads
NOTIFY_REASON_LENGTH_MAX = 200  # why a NURL was dropped, as its row says

# Following a table.
FOLLOW_ROWS_REMEMBERED = 1_024  # to tell a repeat from another row under the same SeqNo
FOLLOW_REPEATED_BYTES_MAX = 256 * 1024 * 1024  # of an answer without a new row: more than a server repeats by mistake
FOLLOW_TRIES_MAX = 6  # in a row, of an answer that lacks rows or is cut off
FOLLOW_POLL_S = 0.5  # after the first of several answers that ended at once without a new row
FOLLOW_POLL_MAX_S = 10.0
FOLLOW_HOLD_S = TABLE_TIMEOUT_MAX_S  # that the server asks another one to hold an answer open
FOLLOW_IDLE_S = 45.0  # without a new row, the same
FOLLOW_SILENCE_S = 15.0  # beyond that, before an answer counts as ended
FOLLOW_NOTIFIED_S = 1.0  # without a row before and after a Notify, until an answer that is held open is given up
FOLLOW_BATCH_BYTES = 256 * 1024  # of rows that wait for the append before
FOLLOW_REFUSED_S = 60.0  # after an answer that is no table, or a local table that cannot be written to
FOLLOW_REGISTER_S = 6 * 3_600.0  # after which a follower registers for Notify again
FOLLOW_REGISTER_PAUSE_S = 10.0  # between two such handshakes, at least
FOLLOWERS_MAX = 256  # SURLs that a server follows
INFLATE_PIECE_BYTES = 64 * 1024
INFLATE_WINDOW_BYTES_MAX = 8 * 1024 * 1024  # that a decompressor keeps

# Views.
VIEW_READ_BYTES = 256 * 1024  # of the source of a view that is behind, read in one step
VIEW_INLINE_BYTES = 64 * 1024  # of a source, converted on the loop; more is converted in a thread
VIEW_BATCH_BYTES = 256 * 1024  # of what a view appends at once, unless one record is larger
VIEW_BATCH_RECORDS = 10_000
VIEW_UNRECORDED_BYTES = 4 * 1024 * 1024  # of a source that gave a view nothing, before its position is recorded alone
VIEWS_BEHIND_AT_ONCE = 2  # views that are behind and take a step at the same time
VIEW_LOOK_S = 1.0  # between two looks whether a source is there again
VIEW_REASON_LENGTH_MAX = 200  # why a message was skipped

# The store's own numbers.
CHUNK_BYTES = 1024 * 1024  # of a stream's bytes in one row of the index
SMALL_CHUNK_BYTES = 64 * 1024  # smaller ones are merged
JOURNAL_DAMAGE_BATCHES_MAX = 4_096  # how far ahead a whole batch is looked for behind a broken one
MAINTAIN_S = 0.25  # between two looks at what there is to do in the background
YIELD_EVERY_STREAMS = 500  # in a loop over many streams, how many between two pauses for others
LOCK_WAIT_S = 10.0  # for the fold worker of a server that was killed
INDEX_LOCK_WAIT_S = 30.0
INDEX_READERS = 2  # threads that read the index, each with a connection
READ_AHEAD_BYTES_MIN = 256 * 1024  # of a piece of the index, for the next one to be read ahead
READ_AHEAD_PIECES_MAX = 4
BLOB_BYTES_MIN = 16 * 1024  # of a chunk; smaller ones are read with their row
RECLAIM_PAGES = 1_024  # of the index, returned to the file system in one step
RECLAIM_URGENT_PAGES = 16_384  # the same while the disk is full
FOLD_NICE = 10
FOLD_TIMEOUT_S = 300.0  # for one segment; a fold worker that takes longer is killed and started again
FOLD_STOP_S = 10.0  # that a stopping server waits for it
FOLD_INTERRUPTIONS_MAX = 5  # in a row, before the store gives up
FULL_RETRY_S = 1.0  # between two looks for room on a full disk
WAL_PAGES_MAX = 16_384  # of the index; a larger log is cut
LARGE_RECORD_BYTES = 256 * 1024  # a larger record is kept in memory as it came, not joined to others
WRITING_WAIT_S = 0.001  # between two looks whether a batch was written
LARGE_BATCH_BYTES = 1024 * 1024  # a larger batch is written to the journal in a thread
SYNC_SLOW_S = 0.001  # a sync that takes longer sends the next ones off the loop
SYNC_ELSEWHERE_MIN = 8
SYNC_ELSEWHERE_MAX = 1_024

# Backups.
BACKUP_BLOCK_BYTES = 1024 * 1024  # of the index, copied if it is not in the target
BACKUP_PART_BYTES = 8 * 1024 * 1024  # of the journal, in one part of a backup, unless a batch is larger
BACKUP_PARTS_MERGED = 64  # small parts that become one
BACKUP_READ_BYTES = 256 * 1024  # of the journal, read in one step
BACKUP_COPIES_AT_ONCE = 4
BACKUP_ZSTD_LEVEL = 1
BACKUP_FOLLOW_S = 1.0  # between two looks at the journal
BACKUP_REACHED_S = 10.0  # after which it is recorded that nothing new was written
BACKUP_HOLD_S = 0.1  # between two looks for new segments to hold
BACKUP_HELD_SEGMENTS_MAX = 32
BACKUP_FREE_BYTES_MIN = 256 * 1024 * 1024  # on the disk of the server; with less, nothing is held
BACKUP_FREEZE_S = 30.0  # that a pause of the fold is waited for
BACKUP_FREEZE_RETRY_S = 0.01
BACKUP_LOG_BYTES_MAX = 1024 * 1024 * 1024  # of the index, that may pile up while it is copied
BACKUP_PREPARED_BYTES_MIN = 64 * 1024 * 1024  # a larger index is copied once before it is frozen
BACKUP_BASE_BYTES_MIN = 256 * 1024 * 1024  # of the journal after a base, before there is another
BACKUP_BASE_S = 7 * 86_400.0
BACKUP_BASES_TRIED = 3
BACKUP_PRUNE_S = 3_600.0  # between two looks for what need not be kept
BACKUP_RETRY_S = 1.0  # after the first failure of a target; doubles with each further one
BACKUP_RETRY_MAX_S = 60.0
BACKUP_CONNECT_S = 10.0  # to a bucket
BACKUP_ANSWER_S = 60.0

# The log's own numbers.
JSON_COMMAS_AT_ONCE = 50_000  # in what is parsed in one call: at most as many messages become objects
JSON_INLINE_BYTES = 1024 * 1024  # parsed at once; more is parsed in a thread
JSON_STEP_BYTES = 64 * 1024
JSON_GUESSES_MAX = 4  # where a long array is cut, before its elements are passed over one by one

# The engine's own numbers.
COMMIT_S = 0.4  # that a batch may take, before fewer bytes may wait for the next one
COMMIT_BYTES_MIN = 16 * 1024 * 1024  # that may wait however long batches take
LARGE_READS_AT_ONCE = 2  # from the store, of records that may be as large as a body
LARGE_READ_BYTES = 64 * 1024  # reads of this size share a bounded rate while appends come in
YIELD_EVERY_SPLITS = 500  # found one after the other, before the loop goes on with other work
TOLD_PER_TURN = 500  # subscribers of a stream that are told of a change in one turn of the loop
WOKEN_PER_TURN = 50  # reads that wait for a change, and are woken by it in one turn: each then prepares an answer
UPDATE_BYTES_MAX = 256 * 1024  # of appends that live readers are told of together
ROW_PROBE_BYTES = 16 * 1024  # of a table, read to see which rows are there
WRITING_MS = 50  # appends count as coming in for this long after the last one
TTL_RENEWAL_PARTS = 20  # a renewal is recorded when this part of the time-to-live has passed
EXPIRE_STREAMS_MAX = 1_000  # in one sweep
ROUTES_MAX = 128  # in the route table
TIMED_PER_S_MAX = 1_000  # requests that are all timed; of more, some are
TIMED_ONE_OF = 16  # of many requests
ACCESS_LOG_WAITING_MAX = 10_000  # lines that wait for the thread that writes them; more are dropped
ACCESS_LOG_BATCH = 1_000  # lines written at once
ACCESS_LOG_EVERY_S = 0.05  # that lines wait for others
ACCESS_LOG_CLOSE_S = 2.0  # that a stopping server waits for the last lines
ACCESS_LOG_PATH_LENGTH_MAX = 1_024  # of a path, and of a query
ACCESS_LOG_AGENT_LENGTH_MAX = 200
TOP_LOOK_S = 1.0  # between two looks at which streams are busy, while someone asks
TOP_KEPT_S = 30.0  # that a look is kept
TOP_STREAMS_PER_TURN = 2_000  # looked at before the loop goes on with other work
TOP_DEFAULT = 20  # streams that are told of
TOP_MAX = 100
STOP_GRACE_S = 5.0  # what a stopping server gives to answers in flight

ACTIVE_IDLE_S = 300.0  # after which an active view that nobody asked for is dropped
ACTIVE_BUILDS_AT_ONCE = 1  # active views that are read from their tables at the same time: each needs memory
ACTIVE_KEY_BYTES = 192  # of memory for a live key, beside its row
ACTIVE_STEP_BYTES = 64 * 1024  # of rows applied to an active view in one step
ACTIVE_SNAPSHOT_BYTES_MIN = 4 * 1024 * 1024  # of rows applied since the last snapshot, before another is written
ACTIVE_SNAPSHOT_RECORD_BYTES = 256 * 1024
ACTIVE_SNAPSHOT_TTL_S = 30 * 86_400

# The edges' own numbers.
CLOCK_STEP_BACK_S = 60.0  # a wall clock that is further behind is followed at once
RETRY_AFTER_S = 1.0  # what clients are told to wait when a request is refused for now
TURN_REQUESTS_MIN = 64  # in one turn of the loop, before some are refused for the time it takes
OVERLOAD_RETRY_MAX_S = 3.0  # what clients are told to wait at most under overload
REFUSED_PAUSE_S = 0.5  # after a request was refused for now, before the next one of its connection is begun
LIVE_RETRY_AFTER_S = 5.0  # what live readers are told: others stay longer than a request
RATE_BURST_S = 1.0  # of a rate, that may be used at once
RATE_KEYS_MAX = 65_536  # identities or addresses whose rates are counted
MEMORY_BYTES_MIN = 128 * 1024 * 1024  # that a mark must leave
MEMORY_OWN_BYTES = 64 * 1024 * 1024  # of a server that does nothing
MEMORY_LOOK_S = 0.05  # between two looks at the memory in use
MEMORY_RELIEF_S = 0.5  # between two attempts to free some
SWITCH_INTERVAL_S = 0.0005  # that the loop waits while a thread runs Python code; 5 ms by default
EDGE_TICK_S = 0.5  # between two looks at the deadlines of all connections
REQUESTS_PER_TURN = 64  # of one connection, that are begun before others have their turn
RECEIVE_BYTES = 64 * 1024  # from one connection, before others have their turn
HEADERS_MAX = 200  # of a request: many small ones take several times their bytes
PARSE_STEP_BYTES = 16 * 1024  # the size of a head, a chunk's extensions or trailers is known to this much
CONNECTIONS_SPARED_MAX = 16  # that are let in while there is no memory: health checks are among them
CONNECTIONS_REFUSED_MAX = 32  # that are told so at a time; more are closed at once
DESCRIPTORS_MAX = 1_048_576  # where the system sets no limit
DESCRIPTORS_RESERVED = 256  # for the store and everything else that is no connection
LISTEN_BACKLOG_CONNECTIONS = 4_096
RESPONSE_JOIN_BYTES_MAX = 64 * 1024  # a larger body is not copied behind its head
WATCH_S = 1.0  # between two looks at files that are loaded again when they change

# The guarded client's own numbers.
OUTBOUND_URL_BYTES_MAX = 2 * 1024
OUTBOUND_HEAD_BYTES_MAX = 16 * 1024  # of an answer, with the informational ones before it
OUTBOUND_READ_BYTES = 16 * 1024  # parsed in one step
OUTBOUND_LOOKUPS_MAX = 16  # of names, under way at a time
OUTBOUND_ADDRESSES_TRIED_MAX = 4  # of a name; all of them are checked
OUTBOUND_KEEP_ALIVE_S = 15.0  # that a connection is kept for the next request

# The client's bounds; a caller may choose otherwise for a producer.
PRODUCER_BATCH_BYTES = 1024 * 1024
PRODUCER_LINGER_S = 0.005
PRODUCER_IN_FLIGHT_MAX = 5
PRODUCER_QUEUE_BYTES = 16 * 1024 * 1024
PRODUCER_DELIVERY_TIMEOUT_S = 120.0
PRODUCER_LEAVE_S = 1.0  # what an interrupted program still waits for
READ_PIECE_BYTES = 32 * 1024 * 1024  # of one answer in memory; a larger one is delivered in parts
READ_BROKEN_ANSWERS_MAX = 5  # in a row, before it is not the network's fault
READ_TRIM_ANSWERS_MAX = 1_000
READ_EMPTY_POLL_S = 0.2
READ_MESSAGE_BYTES_MAX = 256 * 1024 * 1024  # of one message, or of an answer that must be held whole
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # of an answer that is not a read: lists, splits, record times
ERROR_BODY_BYTES_MAX = 64 * 1024
REDIRECTS_MAX = 5
RETRY_AFTER_MAX_S = 300.0  # that a server can make a client wait
SSE_FAILURES_MAX = 2  # in a row, before a reader falls back to long-poll
SSE_FAILURES_PROVEN_MAX = 5  # where server-sent events got through before
SSE_SHORT_FEED_S = 1.0
RETRY_ATTEMPTS_MAX = 6
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
LONG_POLL_TIMEOUT_S = 90.0
SSE_IDLE_TIMEOUT_S = 45.0
SSE_FIRST_TIMEOUT_S = 10.0  # until server-sent events are known to get through
IDLE_CONNECTIONS_MAX = 20  # kept open for the next request
PRODUCER_CLAIMS_MAX = 3  # of a higher epoch, one after the other
SPLIT_TRIES_MAX = 64  # commas tried from the end of a partial answer, before more of it is awaited
ERROR_DETAIL_BYTES_MAX = 500  # of a body that is not a problem document, shown in an error

# A StreamDB's bounds.
STATE_TXIDS_KEPT = 10_000
STATE_CHECKPOINT_EVERY_S = 30.0
STATE_AWAIT_TXID_S = 5.0
STATE_TRANSACTION_S = 30.0
STATE_CHANGES_WAITING_MAX = 100_000  # of one who iterates over changes; beyond it that ends with an error
STATE_SNAPSHOTS_TRIED = 3
STATE_CLOSE_S = 5.0  # what closing waits for the thread that follows

# The Spark formats' bounds; options change most of them.
SPARK_PARTITION_BYTES = 128 * 1024 * 1024  # of a stream, for one task
SPARK_PARTITION_ROWS = 1_000_000  # of a table, for one task
SPARK_PARTITIONS_MAX = 200  # beyond it, small ranges of many streams share a task
SPARK_WAIT_S = 0.5  # that a trigger waits for new data before it reports none
SPARK_WATCHED_MAX = 16  # streams that a waiting trigger long-polls; more are looked at in turn
SPARK_POLL_S = 0.2  # between two such looks
SPARK_RECHECKS_S = (0.2, 0.5, 1.0)  # waits, before a table that lacks rows which were read counts as another one
SPARK_PARSED_BYTES = 4 * 1024 * 1024  # of rows of a table, for one Arrow batch
SPARK_ACTIVE_ROWS = 50_000  # of an active view, for one Arrow batch
SPARK_REQUESTS_AT_ONCE = 16  # of the driver, where many streams are asked for or appended to
SPARK_HEADS_MAX = 32  # streams that are asked for one by one; more are looked for in the list
SPARK_LISTED_PER_NAMED_MAX = 20  # streams in a list for one that is wanted: beyond it, asking one by one is quicker
SPARK_RETRY_S = 60.0  # of failures in a row, before a task or the driver gives up
SPARK_REQUEST_BYTES = 4 * 1024 * 1024  # of rows in one append: what a batch has of a stream at most is stored whole
SPARK_INLINE_BYTES = 64 * 1024  # of rows that a task hands to the driver; more it stores on the server
SPARK_PUBLISHED_BYTES = 16 * 1024 * 1024  # of rows that the driver reads, or appends, at a time
SPARK_GATHERED_BYTES = 64 * 1024 * 1024  # of rows that a task holds, all targets together
SPARK_STAGED_TTL_S = 7 * 86_400  # of rows stored by tasks that nobody published
SPARK_CONNECT_ATTEMPTS_MAX = 3  # of a check before a query runs: a mistyped URL should fail fast
SPARK_RETRY_MAX_S = 5.0  # between two attempts
SPARK_HEAD_BYTES_MAX = 64 * 1024  # of the headers of an answer
SPARK_FREE_BYTES_KEPT = 256 * 1024 * 1024  # freed memory that a worker does not return to the kernel
SPARK_WRITE_ID_BYTES_MAX = 128
SPARK_JAVA_VERSION_S = 60.0  # that `java -version` may take

# The pipeline's bounds.
PIPELINE_POLL_S = 1.0  # between two looks of a job that has nothing to do
PIPELINE_LOCK_WAIT_S = 0.5  # for a run that has just ended and still holds its checkpoint
PIPELINE_LOOK_S = 0.5  # between two looks at running jobs
PIPELINE_LINE_EVERY_S = 5.0  # between two lines about them where there is no terminal
PIPELINE_STREAMS_SHOWN = 8  # of those that are furthest behind
PIPELINE_FILE_BYTES = 128 * 1024 * 1024  # of rows in memory, before a task writes them to files
PIPELINE_ARCHIVE_EVERY_S = 10.0  # between two batches of an archive at least: each makes files
PIPELINE_COMPACT_EVERY = 60  # batches of an archive, after which its small files are joined
PIPELINE_BUCKETS = 64  # of a materialised table, unless told otherwise
PIPELINE_BATCH_BYTES = 1024 * 1024 * 1024  # of streams in one batch: tasks hold the events of a bucket in memory
PIPELINE_MERGE_EVENTS = 20_000  # of a batch that the driver merges itself
PIPELINE_BUCKET_FILES_MAX = 8  # on average, before a small batch writes its buckets anew
PIPELINE_RETAIN_H = 7 * 24  # that files are kept which no version needs any more
PIPELINE_SNAPSHOT_EVERY_S = 600.0  # between two rounds of snapshots
PIPELINE_SNAPSHOT_GRACE_S = 3_600.0  # that a snapshot is kept after the next one: someone may be reading it
PIPELINE_SNAPSHOTS_AT_ONCE = 200  # streams, before a job that is told to stop can do so
PIPELINE_REPLAY_BYTES = 1024 * 1024  # in one append
PIPELINE_REPLAY_MESSAGES = 10_000  # in one append
PIPELINE_REPLAY_ATTEMPTS = 5  # of one append, each after a look at what the target has
PIPELINE_REPLAY_PAUSE_S = 0.5  # before the second of them
PIPELINE_SHOWN_STREAMS = 5  # of an archive, where none matches

# The commands' bounds.
CLI_READ_BYTES = 64 * 1024  # of standard input or a file, in one message of a stream that is not JSON
CLI_PROGRESS_AFTER_S = 1.0  # a command that is done sooner shows no progress bar
CLI_TOP_S = 2.0  # between two looks of `headwater top`
CLI_STATUS_S = 10.0  # between two lines about a mirror that gets rows
CLI_STATUS_RATE_S = 5.0  # over which rows per second are counted
CLI_FOLDED_COLUMN_MIN = 12  # a column of a table is folded no narrower; below that fields are listed
CLI_ARRAY_BYTES_MAX = 256 * 1024 * 1024  # of a JSON array that is appended as one batch
CLI_COMPLETE_CONNECT_S = 0.5
CLI_COMPLETE_ANSWER_S = 1.0
CLI_COMPLETE_PATHS_MAX = 50
BENCH_FILL_MESSAGES = 1_000  # produced between two looks at the clock
BENCH_LIVE_MESSAGES = 200
BENCH_LIVE_PAUSE_S = 0.005

# The demo's bounds.
DEMO_LINE_EVERY_S = 2.0  # where there is no terminal
DEMO_LOOK_EVERY_S = 0.25
DEMO_RATE_OVER_S = 5.0
DEMO_CATCH_UP_S = 600.0  # a busy machine takes minutes to start Spark
DEMO_FEED_EVERY_S = 0.02
DEMO_STOP_S = 30.0  # for the last events to be stored, and for the server to stop
DEMO_BATCH_EVERY_S = 1.0  # of materialize
DEMO_BUCKETS = 4  # of the table, which has some thousand rows
DEMO_CAUGHT_UP_S = 5.0  # Spark is said to follow once it is less behind than this
DEMO_CUSTOMERS_MAX = 500
DEMO_OPEN_ORDERS_MAX = 1_000
DEMO_LATE_SHARE = 0.02  # of the events
DEMO_REPEATED_SHARE = 0.01
DEMO_BAD_SHARE = 0.01
DEMO_LATE_BY_MAX = 300  # events


def _is(text: str) -> Meta:
    return Meta(description=text)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that a deployment may set; the defaults suit one server on a small machine.

    What is said of each here is in the documentation too: `python -m tools.reference` writes it there. A limit whose
    default is 0 is off, and 0 turns it off again; all others must be more than 0.
    """

    streams_max: Annotated[int, _is("streams and tables in all; a create beyond it gets 403; 0: no limit")] = 0
    stream_bytes_max: Annotated[
        int, _is("bytes of a stream or table, without what a fork inherits; an append beyond it gets 413; 0: no limit")
    ] = 0
    requests_per_s_per_identity: Annotated[
        int, _is("requests a second of a token, or of an address where there is none (429); 0: no limit")
    ] = 0
    requests_per_s_per_address: Annotated[
        int, _is("requests a second of an IPv4 address or an IPv6 /64 (429); 0: no limit")
    ] = 0
    bytes_per_s_per_identity: Annotated[
        int, _is("bytes of bodies a second, received and sent, of an identity (429); 0: no limit")
    ] = 0
    bytes_per_s_per_address: Annotated[int, _is("the same of an address (429); 0: no limit")] = 0
    live_readers_max: Annotated[
        int, _is("long-polls, event streams and table reads that are held open (503); 0: no limit")
    ] = 0
    live_readers_per_identity_max: Annotated[int, _is("of them of one identity (429); 0: no limit")] = 0
    memory_bytes_max: Annotated[
        int, _is("resident memory; from nine tenths of it on writes get 503, and reads go on; 0: no limit")
    ] = 0
    connections_per_address_max: Annotated[
        int,
        _is("open connections of an address (429), those of trusted proxies excepted; native edge only; 0: no limit"),
    ] = 0
    request_wait_s_max: Annotated[
        float, _is("how long requests wait to be begun under overload; others get 503; native edge only")
    ] = 0.2
    body_bytes_max: Annotated[int, _is("largest body of a request (413)")] = 16 * 1024 * 1024
    messages_per_append_max: Annotated[int, _is("messages in one JSON body (413)")] = 1_000_000
    header_bytes_max: Annotated[int, _is("headers of a request, of which there are 200 at most (431)")] = 32 * 1024
    url_bytes_max: Annotated[int, _is("URL of a request (414)")] = 8 * 1024
    read_chunk_bytes: Annotated[int, _is("size of a catch-up read")] = 2 * 1024 * 1024
    sse_chunk_bytes: Annotated[int, _is("size of an event while a feed catches up")] = 256 * 1024
    connections_max: Annotated[int, _is("open connections (503); fewer if the system grants too few descriptors")] = (
        65_536
    )
    pipeline_requests_max: Annotated[int, _is("requests a connection may have waiting")] = 16
    pipeline_bytes_max: Annotated[int, _is("and their bytes")] = 1024 * 1024
    request_bytes_in_flight_max: Annotated[
        int, _is("requests that are incomplete or wait, over all connections (503)")
    ] = 256 * 1024 * 1024
    response_bytes_in_flight_max: Annotated[
        int, _is("responses that clients have not read, over all connections; beyond it reads get 503")
    ] = 256 * 1024 * 1024
    large_read_bytes_max: Annotated[
        int, _is("large records that readers have not taken yet, each counted once; beyond it their reads get 503")
    ] = 128 * 1024 * 1024
    write_buffer_bytes: Annotated[int, _is("unsent bytes of a connection before nothing more is written to it")] = (
        256 * 1024
    )
    live_buffer_bytes: Annotated[int, _is("the same for a feed under an ASGI server")] = 256 * 1024
    long_poll_s: Annotated[float, _is("how long a long-poll waits")] = 30.0
    sse_lifetime_s: Annotated[float, _is("how long a feed stays open")] = 60.0
    sse_keep_alive_s: Annotated[float, _is("silence before a keep-alive comment")] = 15.0
    idle_s: Annotated[float, _is("a connection without a request")] = 75.0
    header_s: Annotated[float, _is("from the first byte of a request to the end of its headers (408)")] = 10.0
    tls_handshake_s: Annotated[float, _is("from a new connection to the end of its TLS handshake")] = 10.0
    body_stall_s: Annotated[float, _is("between two pieces of a body (408)")] = 30.0
    body_bytes_per_s_min: Annotated[
        int, _is("a body that is slower, on average and after `body_stall_s`, is refused (408)")
    ] = 500
    write_stall_s: Annotated[float, _is("a client that takes nothing")] = 60.0
    linger_s: Annotated[float, _is("reading on after a refusal, so that the client sees it")] = 2.0
    half_closed_s: Annotated[float, _is("answering a client that has closed its sending side")] = 5.0
    expiry_sweep_s: Annotated[float, _is("between two looks for expired streams")] = 1.0
    expiry_grace_s: Annotated[float, _is("after a start, before streams are deleted that had expired by then")] = 600.0
    commit_backlog_bytes: Annotated[int, _is("accepted writes waiting for the disk (503)")] = 64 * 1024 * 1024
    read_bytes_per_s_while_writing: Annotated[int, _is("all large reads together, while appends come in")] = (
        256 * 1024 * 1024
    )
    segment_bytes: Annotated[int, _is("of the journal")] = 32 * 1024 * 1024
    unfolded_segments_max: Annotated[int, _is("before writers wait for the fold")] = 6
    fold_idle_s: Annotated[float, _is("a journal left alone this long is folded")] = 2.0
    reclaim_chunks: Annotated[int, _is("of deleted streams, dropped in one step")] = 64
    disk_reserve_bytes: Annotated[int, _is("kept free for deletions and the fold when the disk is full")] = (
        64 * 1024 * 1024
    )
    streams_loaded_max: Annotated[int, _is("streams in memory")] = 100_000
    documents_loaded_max: Annotated[int, _is("documents in memory")] = 10_000
    active_keys_max: Annotated[
        int, _is("live keys of a table that is asked for its active view; more is answered with 409")
    ] = 1_000_000
    active_bytes_max: Annotated[
        int,
        _is(
            "of active views in memory, all tables together; the least recently used make room. Views are built one "
            "after the other"
        ),
    ] = 256 * 1024 * 1024
    compress_inline_bytes: Annotated[int, _is("larger bodies are compressed off the loop")] = 16 * 1024
    views_max: Annotated[int, _is("views (409)")] = 1_000
    nurls_per_table_max: Annotated[int, _is("NURLs of a table (409)")] = 100
    nurls_max: Annotated[int, _is("NURLs of all tables (409)")] = 10_000
    notify_posts_max: Annotated[int, _is("POSTs to NURLs under way")] = 64
    notify_retry_s: Annotated[float, _is("after the first failure of a NURL; doubles with each further one")] = 1.0
    notify_retry_max_s: Annotated[float, _is("the longest wait between two attempts")] = 3_600.0
    notify_give_up_s: Annotated[float, _is("failures of a NURL, after which it is dropped")] = 86_400.0
    outbound_connections_max: Annotated[int, _is("connections to URLs that others named")] = 256
    outbound_connections_per_host_max: Annotated[int, _is("of them to one host")] = 32
    outbound_connect_s: Annotated[float, _is("looking up a name and connecting to it, and again for TLS")] = 10.0
    outbound_request_s: Annotated[
        float, _is("such a request and its answer; of an answer that is streamed, until its headers are there")
    ] = 30.0
    outbound_idle_s: Annotated[float, _is("silence in such an answer")] = 60.0
    outbound_body_bytes_max: Annotated[int, _is("such an answer, unless it is streamed")] = 1024 * 1024


def parse_limits(settings: Iterable[str]) -> Limits:
    """Limits from `name=value` settings over the defaults."""
    return set_limits({name: value for name, _, value in (setting.partition("=") for setting in settings)})


def set_limits(given: Mapping[str, object]) -> Limits:
    """Limits by name over the defaults; ValueError says what is wrong."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Limits)}
    numbers: dict[str, int | float] = {}
    for name, value in given.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1)
            instead = f"did you mean {close[0]}?" if close else f"there are {', '.join(defaults)}"
            raise ValueError(f"no limit is called {name!r}; {instead}")
        kind, may_be_off = type(defaults[name]), not defaults[name]
        try:
            numbers[name] = kind(str(value))
        except ValueError:
            raise ValueError(f"{name} is {kind.__name__}, got {value!r}") from None
        if not 0 <= numbers[name] < float("inf") or not (numbers[name] or may_be_off):
            raise ValueError(f"{name} must be {'0 (no limit) or ' if may_be_off else ''}more than 0 and finite, got {value!r}")
    return msgspec.structs.replace(Limits(), **numbers)
