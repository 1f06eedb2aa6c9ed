"""Every limit of the system in one place. The last word of a name is its unit.

`Limits` holds those that a deployment can set.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

# Numbers of the protocol.
PRODUCER_INTEGER_MAX = 2**53 - 1  # the largest integer that JavaScript represents exactly
OFFSET_DIGITS = 16
CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 20
CURSOR_JITTER_MAX_S = 3_600
CURSOR_LENGTH_MAX = 64
CACHE_MAX_AGE_S = 60
CACHE_STALE_S = 300
CACHE_LASTING_S = 365 * 86_400  # for responses that never change
COMPRESS_BYTES_MIN = 1_024
ENCODERS_MAX = 64  # streamed responses compressed at the same time; further ones are sent uncompressed

BODY_PIECE_BYTES = 128 * 1024  # a large body is written in pieces of this size
SSE_PIECE_BYTES = 48 * 1024  # stream data encoded in one step; a multiple of 3, for base64
SSE_PIECES_KEPT = 2  # encoded pieces kept for other readers of the same event
TURNS_S = 0.005  # time spent on writing large responses in one turn of the loop
SSE_JOIN_BYTES_MAX = 4 * 1024  # up to this size, data and control event are sent in one write, else in two

# Limits of what a request may contain, and of caches by what it contains.
PATH_BYTES_MAX = 1_024
PATH_SEGMENT_BYTES_MAX = 255
PATHS_CACHED_MAX = 65_536  # resolved paths
ADDRESSES_CACHED_MAX = 4_096  # client addresses, each with the address or network that it is counted under
FORWARDED_MAX = 16  # proxies in a forwarding header that are looked at, from the last one
HOSTS_KNOWN_MAX = 1_024  # host names under which requests reached this server
CACHED_TEXT_LENGTH_MAX = 256  # results of parsing client text are cached up to this length
HEADER_VALUE_BYTES_MAX = 1_024  # header values that are stored: Stream-Seq, Producer-Id, Content-Type
TTL_S_MAX = 100 * 366 * 86_400
FORK_DEPTH_MAX = 128
PRODUCER_IDLE_S = 30 * 86_400  # after which a stream forgets the sequence of a producer, but not its epoch
PRODUCERS_EXPIRED_EVERY = 1_024  # new producers of a stream after which idle ones are removed
LIST_PAGE_MAX = 1_000
LIST_PAGE_DEFAULT = 100
RECORDS_PAGE_MAX = 10_000
RECORDS_PAGE_DEFAULT = 1_000
SPLITS_MAX = 10_000

# Access: tokens, JWTs and signed URLs.
AUTH_FILE_BYTES_MAX = 16 * 1024 * 1024
AUTH_HEADER_LENGTH_MAX = 16 * 1024  # of credentials; longer ones are refused without being parsed
AUTH_CALLERS_CACHED_MAX = 4_096  # verified credentials
AUTH_DECISIONS_CACHED_MAX = 1_024  # per caller: decisions on an action and a path
AUTH_CHECK_S = 0.5  # interval at which the permissions of live readers are checked again
AUTH_SCOPES_MAX = 256  # of one token
AUTH_SCOPE_LENGTH_MAX = 1_100
AUTH_SCOPE_STARS_MAX = 2  # `**` in a glob, and `*` in one of its segments; each makes matching slower
AUTH_NAME_LENGTH_MAX = 128  # of an identity
AUTH_LEEWAY_S = 30  # tolerated clock difference to the issuer of a token
AUTH_KEYS_MAX = 64  # of one issuer
AUTH_RSA_BITS_MIN = 2_048
AUTH_SECRET_BYTES_MIN = 32  # of HS256, and of the secret that signs URLs
AUTH_JWKS_REFRESH_S = 300.0
AUTH_JWKS_ASKED_S = 30.0  # minimum time between two fetches of keys that are caused by an unknown key id
AUTH_JWKS_RETRY_S = 1.0  # after the first failure; doubles with each further one, up to AUTH_JWKS_REFRESH_S
SIGNED_URL_S = 3_600
SIGNED_URL_S_MAX = 7 * 86_400

# Tables: rows, queries and Notify forms.
SEQNO_MAX = 2**63 - 1  # the largest signed 64-bit integer
SIZE_DIGITS_MAX = 18  # of a size in a header; longer numbers are invalid
SEQNO_DIGITS_MAX = 19
ROW_BYTES_MAX = 1024 * 1024  # the longest row that a client accepts, without its newline
CHANGE_BYTES_MAX = ROW_BYTES_MAX - 64  # of an appended line: the row has the SeqNo and timestamp in addition
CHANGE_OVERHEAD_BYTES = 4  # of a line: action, tabs and newline
KEY_BYTES_MAX = 1_024
SCHEMA_LENGTH_MAX = 128
SCHEMA_VERSION_DIGITS_MAX = 9
ROW_PIECES_KEPT = 16  # recent pieces of a table, kept for other live readers at about the same position
TABLE_TIMEOUT_S = 30.0  # how long a read is held open, unless the query sets another time
TABLE_TIMEOUT_MAX_S = 300.0
TABLE_IDLE_S = 10.0  # a held read ends after this time without a new row
TABLE_IDLE_MAX_S = 300.0
CHANGES_INLINE_BYTES = 1024 * 1024  # a larger body is checked in a thread
ROWS_INLINE_BYTES = 64 * 1024  # the same for rows of a mirror
CHANGES_MAX = 100_000  # in one append, so that numbering them does not block the loop
NOTIFY_BODY_BYTES_MAX = 64 * 1024
NOTIFY_NURLS_MAX = 64  # in one form
EVENT_TYPE_LENGTH_MAX = 64
URL_LENGTH_MAX = 2_048  # of a SURL or a NURL
NURL_SEEN_MS = 86_400_000  # minimum time between two records that a NURL was advertised again
NOTIFY_ANSWER_S = 10.0  # timeout for the response of a NURL
NOTIFY_POSTS_PER_HOST_MAX = 8  # concurrent POSTs, so that a slow host does not delay the others
NOTIFY_ANSWER_BYTES_MAX = 64 * 1024  # of the response of a NURL, which is ignored
NOTIFY_REASON_LENGTH_MAX = 200  # of the stored reason why a NURL was dropped

# Following a table.
FOLLOW_ROWS_REMEMBERED = 1_024  # to distinguish a repeated row from another row with the same SeqNo
FOLLOW_REPEATED_BYTES_MAX = 256 * 1024 * 1024  # of repeated rows in a response; with more, the read fails
FOLLOW_TRIES_MAX = 6  # consecutive responses that lack rows or are cut off
FOLLOW_POLL_S = 0.5  # first wait after a response that ended at once without a new row
FOLLOW_POLL_MAX_S = 10.0
FOLLOW_HOLD_S = TABLE_TIMEOUT_MAX_S  # the `timeout` that a follower requests from the other server
FOLLOW_IDLE_S = 45.0  # the idle time that it requests
FOLLOW_SILENCE_S = 15.0  # silence beyond the idle time after which the connection counts as dead
FOLLOW_NOTIFIED_S = 1.0  # after a Notify, a held read that brings no row in this time is replaced by a new one
FOLLOW_BATCH_BYTES = 256 * 1024  # of rows that wait while the previous append is under way
FOLLOW_REFUSED_S = 60.0  # wait after a response that is not a table, or if the local table cannot be written
FOLLOW_REGISTER_S = 6 * 3_600.0  # interval at which a follower registers its NURL again
FOLLOW_REGISTER_PAUSE_S = 10.0  # minimum time between two registrations
FOLLOWERS_MAX = 256  # SURLs that a server follows
INFLATE_PIECE_BYTES = 64 * 1024
INFLATE_WINDOW_BYTES_MAX = 8 * 1024 * 1024  # window of a decompressor

# Views.
VIEW_READ_BYTES = 256 * 1024  # of the source, read in one step while a view catches up
VIEW_INLINE_BYTES = 64 * 1024  # of the source, converted on the loop; more is converted in a thread
VIEW_BATCH_BYTES = 256 * 1024  # of one append of a view, unless one record is larger
VIEW_BATCH_RECORDS = 10_000
VIEW_UNRECORDED_BYTES = 4 * 1024 * 1024  # of the source without a row for the view, after which its position is saved
VIEWS_BEHIND_AT_ONCE = 2  # views that catch up at the same time
VIEW_LOOK_S = 1.0  # interval of checks whether a missing source exists again
VIEW_REASON_LENGTH_MAX = 200  # of the stored reason why a message was skipped

# The store.
CHUNK_BYTES = 1024 * 1024  # of a stream's bytes in one row of the index
SMALL_CHUNK_BYTES = 64 * 1024  # smaller ones are merged
JOURNAL_DAMAGE_BATCHES_MAX = 4_096  # how far after a damaged batch the next valid one is searched
MAINTAIN_S = 0.25  # interval of background maintenance
YIELD_EVERY_STREAMS = 500  # a loop over many streams yields to other tasks after this many
LOCK_WAIT_S = 10.0  # for the fold worker of a killed server to release the lock
INDEX_LOCK_WAIT_S = 30.0
INDEX_READERS = 2  # threads that read the index, each with a connection
READ_AHEAD_BYTES_MIN = 256 * 1024  # after a read of this size from the index, the next piece is read ahead
READ_AHEAD_PIECES_MAX = 4
BLOB_BYTES_MIN = 16 * 1024  # of a chunk; smaller ones are read with their row
RECLAIM_PAGES = 1_024  # of the index, returned to the file system in one step
RECLAIM_URGENT_PAGES = 16_384  # the same while the disk is full
FOLD_NICE = 10
FOLD_TIMEOUT_S = 300.0  # for one segment; a fold worker that takes longer is killed and started again
FOLD_STOP_S = 10.0  # how long a stopping server waits for the fold worker
FOLD_INTERRUPTIONS_MAX = 5  # consecutive failures of the fold worker before the store fails
FULL_RETRY_S = 1.0  # interval of checks for free space on a full disk
WAL_PAGES_MAX = 16_384  # of the index; a larger write-ahead log is truncated
LARGE_RECORD_BYTES = 256 * 1024  # a larger record is kept in memory by itself, not joined to others
WRITING_WAIT_S = 0.001  # interval of checks whether a batch was written
LARGE_BATCH_BYTES = 1024 * 1024  # a larger batch is written to the journal in a thread
SYNC_SLOW_S = 0.001  # after a slower fsync, the next ones run in a thread
SYNC_ELSEWHERE_MIN = 8
SYNC_ELSEWHERE_MAX = 1_024

# Backups.
BACKUP_BLOCK_BYTES = 1024 * 1024  # the index is copied in blocks of this size, if the target lacks them
BACKUP_PART_BYTES = 8 * 1024 * 1024  # of the journal, in one part of a backup, unless a batch is larger
BACKUP_PARTS_MERGED = 64  # small parts that become one
BACKUP_READ_BYTES = 256 * 1024  # of the journal, read in one step
BACKUP_COPIES_AT_ONCE = 4
BACKUP_ZSTD_LEVEL = 1
BACKUP_FOLLOW_S = 1.0  # interval of checks for new data in the journal
BACKUP_REACHED_S = 10.0  # interval at which a backup without new data records that it is current
BACKUP_HOLD_S = 0.1  # interval of checks for new segments to hold
BACKUP_HELD_SEGMENTS_MAX = 32
BACKUP_FREE_BYTES_MIN = 256 * 1024 * 1024  # on the server's disk; with less, no segments are held
BACKUP_FREEZE_S = 30.0  # how long to wait for the fold to pause
BACKUP_FREEZE_RETRY_S = 0.01
BACKUP_LOG_BYTES_MAX = 1024 * 1024 * 1024  # size of the index's write-ahead log while the index is copied
BACKUP_PREPARED_BYTES_MIN = 64 * 1024 * 1024  # a larger index is copied once before it is frozen
BACKUP_BASE_BYTES_MIN = 256 * 1024 * 1024  # of the journal after a base before another base is made
BACKUP_BASE_S = 7 * 86_400.0
BACKUP_BASES_TRIED = 3
BACKUP_PRUNE_S = 3_600.0  # interval at which old data is removed
BACKUP_RETRY_S = 1.0  # after the first failure of a target; doubles with each further one
BACKUP_RETRY_MAX_S = 60.0
BACKUP_CONNECT_S = 10.0  # to a bucket
BACKUP_ANSWER_S = 60.0

# The log.
JSON_COMMAS_AT_ONCE = 50_000  # in the text of one parser call: an upper bound of the messages that become objects
JSON_INLINE_BYTES = 1024 * 1024  # parsed on the loop; more is parsed in a thread
JSON_STEP_BYTES = 64 * 1024
JSON_GUESSES_MAX = 4  # attempts to cut a long array at a guessed comma before its elements are parsed one by one

# The engine.
COMMIT_S = 0.4  # if batches take longer to commit, fewer bytes may wait for the next one
COMMIT_BYTES_MIN = 16 * 1024 * 1024  # lower bound of the bytes that may wait
LARGE_READS_AT_ONCE = 2  # concurrent reads of large records from the store
LARGE_READ_BYTES = 64 * 1024  # reads of this size share a bounded rate while appends come in
YIELD_EVERY_SPLITS = 500  # splits found before the search yields to other tasks
TOLD_PER_TURN = 500  # subscribers of a stream that are notified of a change in one turn of the loop
WOKEN_PER_TURN = 50  # waiting reads that a change wakes in one turn, because each then prepares a response
UPDATE_BYTES_MAX = 256 * 1024  # of appends that live readers get in one notification
ROW_PROBE_BYTES = 16 * 1024  # of a table, read to find which rows are at a position
WRITING_MS = 50  # a stream of appends counts as ongoing for this long after the last one
TTL_RENEWAL_PARTS = 20  # a renewal is stored when 1/20 of the time-to-live has passed
EXPIRE_STREAMS_MAX = 1_000  # in one sweep
ROUTES_MAX = 128  # in the route table
TIMED_PER_S_MAX = 1_000  # up to this rate every request is timed
TIMED_ONE_OF = 16  # above it, one of so many
ACCESS_LOG_WAITING_MAX = 10_000  # lines queued for the writing thread; more are dropped
ACCESS_LOG_BATCH = 1_000  # lines written at once
ACCESS_LOG_EVERY_S = 0.05  # how long lines wait to be written together
ACCESS_LOG_CLOSE_S = 2.0  # how long a stopping server waits for the last lines
ACCESS_LOG_PATH_LENGTH_MAX = 1_024  # of a path, and of a query
ACCESS_LOG_AGENT_LENGTH_MAX = 200
TOP_LOOK_S = 1.0  # interval of samples of the busiest streams, while clients request them
TOP_KEPT_S = 30.0  # how long a sample is kept
TOP_STREAMS_PER_TURN = 2_000  # streams counted before the loop continues with other tasks
TOP_DEFAULT = 20  # streams listed
TOP_MAX = 100
STOP_GRACE_S = 5.0  # how long a stopping server waits for responses in flight

ACTIVE_IDLE_S = 300.0  # an active view that is not requested for this long is dropped
ACTIVE_BUILDS_AT_ONCE = 1  # active views built from their tables at the same time, because each needs memory
ACTIVE_KEY_BYTES = 192  # of memory for a live key, beside its row
ACTIVE_STEP_BYTES = 64 * 1024  # of rows applied to an active view in one step
ACTIVE_SNAPSHOT_BYTES_MIN = 4 * 1024 * 1024  # of rows applied since the last snapshot before another is written
ACTIVE_SNAPSHOT_RECORD_BYTES = 256 * 1024
ACTIVE_SNAPSHOT_TTL_S = 30 * 86_400

# The edges.
CLOCK_STEP_BACK_S = 60.0  # if the wall clock goes back by more than this, the server follows it at once
RETRY_AFTER_S = 1.0  # Retry-After of a request that is refused temporarily
TURN_REQUESTS_MIN = 64  # requests accepted in one turn of the loop before any is refused as overload
OVERLOAD_RETRY_MAX_S = 3.0  # largest Retry-After under overload
REFUSED_PAUSE_S = 0.5  # pause of a connection after a request was refused temporarily
LIVE_RETRY_AFTER_S = 5.0  # Retry-After of a refused live read, because live reads take longer to end than requests
RATE_BURST_S = 1.0  # a rate limit allows bursts of this many seconds
RATE_KEYS_MAX = 65_536  # identities or addresses whose rates are counted
MEMORY_BYTES_MIN = 128 * 1024 * 1024  # smallest accepted memory limit
MEMORY_OWN_BYTES = 64 * 1024 * 1024  # memory of an idle server
MEMORY_LOOK_S = 0.05  # interval at which the memory in use is measured
MEMORY_RELIEF_S = 0.5  # minimum time between two attempts to free memory
SWITCH_INTERVAL_S = 0.0005  # how long the loop waits for a thread that runs Python code; Python's default is 5 ms
EDGE_TICK_S = 0.5  # interval at which the deadlines of all connections are checked
REQUESTS_PER_TURN = 64  # requests of one connection that are started before other connections get their turn
RECEIVE_BYTES = 64 * 1024  # read from one connection before other connections get their turn
HEADERS_MAX = 200  # of a request; many small headers take several times their bytes in memory
PARSE_STEP_BYTES = 16 * 1024  # granularity at which the size of a head, chunk extensions or trailers is checked
CONNECTIONS_SPARED_MAX = 16  # connections accepted while there is no memory, so that health checks still work
CONNECTIONS_REFUSED_MAX = 32  # refused connections that get a response at the same time; more are closed at once
DESCRIPTORS_MAX = 1_048_576  # where the system sets no limit
DESCRIPTORS_RESERVED = 256  # for the store and everything else that is not a connection
LISTEN_BACKLOG_CONNECTIONS = 4_096
RESPONSE_JOIN_BYTES_MAX = 64 * 1024  # head and body are sent in one write if the body is not larger
WATCH_S = 1.0  # interval of checks whether a watched file has changed

# The client for outbound requests of the server.
OUTBOUND_URL_BYTES_MAX = 2 * 1024
OUTBOUND_HEAD_BYTES_MAX = 16 * 1024  # headers of a response, including informational (1xx) responses before it
OUTBOUND_READ_BYTES = 16 * 1024  # parsed in one step
OUTBOUND_LOOKUPS_MAX = 16  # concurrent name lookups
OUTBOUND_ADDRESSES_TRIED_MAX = 4  # addresses of a name that are tried; all of them are checked
OUTBOUND_KEEP_ALIVE_S = 15.0  # how long an idle connection is kept for the next request

# The client. The arguments of a producer override its limits.
PRODUCER_BATCH_BYTES = 1024 * 1024
PRODUCER_LINGER_S = 0.005
PRODUCER_IN_FLIGHT_MAX = 5
PRODUCER_QUEUE_BYTES = 16 * 1024 * 1024
PRODUCER_DELIVERY_TIMEOUT_S = 120.0
PRODUCER_LEAVE_S = 1.0  # how long an interrupted program waits for its producer
READ_PIECE_BYTES = 32 * 1024 * 1024  # of one response in memory; a larger one is delivered in parts
READ_BROKEN_ANSWERS_MAX = 5  # consecutive unreadable responses after which a read fails
READ_TRIM_ANSWERS_MAX = 1_000
READ_EMPTY_POLL_S = 0.2
READ_MESSAGE_BYTES_MAX = 256 * 1024 * 1024  # of one message, or of a response that cannot be delivered in parts
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # of a response that is not a read: lists, splits, record times
ERROR_BODY_BYTES_MAX = 64 * 1024
REDIRECTS_MAX = 5
RETRY_AFTER_MAX_S = 300.0  # longest Retry-After that a client obeys
SSE_FAILURES_MAX = 2  # consecutive failures after which a reader falls back to long-poll
SSE_FAILURES_PROVEN_MAX = 5  # the same if server-sent events worked before
SSE_SHORT_FEED_S = 1.0
RETRY_ATTEMPTS_MAX = 6
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
LONG_POLL_TIMEOUT_S = 90.0
SSE_IDLE_TIMEOUT_S = 45.0
SSE_FIRST_TIMEOUT_S = 10.0  # until server-sent events have worked once
IDLE_CONNECTIONS_MAX = 20  # kept open for the next request
PRODUCER_CLAIMS_MAX = 3  # consecutive attempts to claim a higher epoch
SPLIT_TRIES_MAX = 64  # commas tried from the end of a partial response before more of it is awaited
ERROR_DETAIL_BYTES_MAX = 500  # of a body that is not a problem document, shown in an error

# StreamDB.
STATE_TXIDS_KEPT = 10_000
STATE_CHECKPOINT_EVERY_S = 30.0
STATE_AWAIT_TXID_S = 5.0
STATE_TRANSACTION_S = 30.0
STATE_CHANGES_WAITING_MAX = 100_000  # queued for one iterator over changes; with more, it ends with an error
STATE_SNAPSHOTS_TRIED = 3
STATE_CLOSE_S = 5.0  # how long `close` waits for the thread that follows the stream

# The Spark formats. Options override most of these.
SPARK_PARTITION_BYTES = 128 * 1024 * 1024  # of a stream, for one task
SPARK_PARTITION_ROWS = 1_000_000  # of a table, for one task
SPARK_PARTITIONS_MAX = 200  # with more, small ranges of many streams share a task
SPARK_WAIT_S = 0.5  # how long a trigger waits for new data before it reports none
SPARK_WATCHED_MAX = 16  # streams that a waiting trigger long-polls; more are polled in turn
SPARK_POLL_S = 0.2  # interval of these polls
SPARK_RECHECKS_S = (0.2, 0.5, 1.0)  # waits before a table that lacks rows which were read counts as another table
SPARK_PARSED_BYTES = 4 * 1024 * 1024  # of rows of a table, for one Arrow batch
SPARK_ACTIVE_ROWS = 50_000  # of an active view, for one Arrow batch
SPARK_REQUESTS_AT_ONCE = 16  # concurrent requests of the driver to many streams
SPARK_HEADS_MAX = 32  # streams that are requested one by one; more are taken from the list of streams
SPARK_LISTED_PER_NAMED_MAX = 20  # listed streams per needed one; with more, requests one by one are faster
SPARK_RETRY_S = 60.0  # a task or the driver gives up after failing for this long
SPARK_REQUEST_BYTES = 4 * 1024 * 1024  # of rows in one append, which is atomic
SPARK_INLINE_BYTES = 64 * 1024  # of rows that a task passes to the driver; more are staged on the server
SPARK_PACKED_RATIO_MAX = 0.9  # staged rows are stored compressed if that makes them at least this much smaller
SPARK_PUBLISHED_BYTES = 16 * 1024 * 1024  # of rows that the driver reads or appends at a time
SPARK_GATHERED_BYTES = 64 * 1024 * 1024  # of rows that a task holds, all targets together
SPARK_STAGED_TTL_S = 7 * 86_400  # of rows that a task staged and the driver did not publish
SPARK_CONNECT_ATTEMPTS_MAX = 3  # of the check before a query starts, so that a mistyped URL fails fast
SPARK_RETRY_MAX_S = 5.0  # between two attempts
SPARK_HEAD_BYTES_MAX = 64 * 1024  # of the headers of an answer
SPARK_FREE_BYTES_KEPT = 256 * 1024 * 1024  # freed memory that a worker does not return to the kernel
SPARK_WRITE_ID_BYTES_MAX = 128
SPARK_JAVA_VERSION_S = 60.0  # timeout of `java -version`

# The pipeline.
PIPELINE_POLL_S = 1.0  # interval at which an idle job checks for new data
PIPELINE_LOCK_WAIT_S = 0.5  # for a run that has just ended and still holds its checkpoint
PIPELINE_LOOK_S = 0.5  # interval at which the state of running jobs is read
PIPELINE_LINE_EVERY_S = 5.0  # between two status lines if there is no terminal
PIPELINE_STREAMS_SHOWN = 8  # the streams with the largest lag
PIPELINE_FILE_BYTES = 128 * 1024 * 1024  # of rows in memory before a task writes them to files
PIPELINE_ARCHIVE_EVERY_S = 10.0  # minimum time between two batches of an archive, because each makes files
PIPELINE_COMPACT_EVERY = 60  # batches of an archive after which small files are merged
PIPELINE_BUCKETS = 64  # default number of buckets of a materialized table
PIPELINE_BATCH_BYTES = 1024 * 1024 * 1024  # of streams in one batch: tasks hold the events of a bucket in memory
PIPELINE_MERGE_EVENTS = 20_000  # a batch of at most this size is merged by the driver
PIPELINE_BUCKET_FILES_MAX = 8  # average files per bucket above which a small batch rewrites its buckets
PIPELINE_RETAIN_H = 7 * 24  # how long files are kept that no version needs
PIPELINE_SNAPSHOT_EVERY_S = 600.0  # between two rounds of snapshots
PIPELINE_SNAPSHOT_GRACE_S = 3_600.0  # how long a snapshot is kept after the next one, for clients that still read it
PIPELINE_SNAPSHOTS_AT_ONCE = 200  # streams per step; a job can stop between two steps
PIPELINE_REPLAY_BYTES = 1024 * 1024  # in one append
PIPELINE_REPLAY_MESSAGES = 10_000  # in one append
PIPELINE_REPLAY_ATTEMPTS = 5  # of one append; before each, the target's content is checked
PIPELINE_REPLAY_PAUSE_S = 0.5  # before the second attempt
PIPELINE_SHOWN_STREAMS = 5  # streams of an archive that an error names if none matches

# The commands.
CLI_READ_BYTES = 64 * 1024  # of standard input or a file, in one message of a stream that is not JSON
CLI_PROGRESS_AFTER_S = 1.0  # a command that ends sooner shows no progress bar
CLI_TOP_S = 2.0  # refresh interval of `headwater top`
CLI_STATUS_S = 10.0  # between two status lines of a mirror that receives rows
CLI_STATUS_RATE_S = 5.0  # window of the rows per second
CLI_FOLDED_COLUMN_MIN = 12  # narrowest column with wrapped text; below it, fields are listed instead of a table
CLI_ARRAY_BYTES_MAX = 256 * 1024 * 1024  # of a JSON array that is appended as one batch
CLI_COMPLETE_CONNECT_S = 0.5
CLI_COMPLETE_ANSWER_S = 1.0
CLI_COMPLETE_PATHS_MAX = 50
BENCH_FILL_MESSAGES = 1_000  # produced between two checks of the clock
BENCH_LIVE_MESSAGES = 200
BENCH_LIVE_PAUSE_S = 0.005

# The demo.
DEMO_LINE_EVERY_S = 2.0  # if there is no terminal
DEMO_LOOK_EVERY_S = 0.25
DEMO_RATE_OVER_S = 5.0
DEMO_CATCH_UP_S = 600.0  # a busy machine takes minutes to start Spark
DEMO_FEED_EVERY_S = 0.02
DEMO_STOP_S = 30.0  # for the last events to be stored, and for the server to stop
DEMO_BATCH_EVERY_S = 1.0  # of materialize
DEMO_BUCKETS = 4  # of the table, which has a few thousand rows
DEMO_CAUGHT_UP_S = 5.0  # Spark counts as caught up if its lag is smaller
DEMO_CUSTOMERS_MAX = 500
DEMO_OPEN_ORDERS_MAX = 1_000
DEMO_LATE_SHARE = 0.02  # of the events
DEMO_REPEATED_SHARE = 0.01
DEMO_BAD_SHARE = 0.01
DEMO_LATE_BY_MAX = 300  # events


def _is(text: str) -> Meta:
    return Meta(description=text)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a deployment can set; the defaults suit one server on a small machine.

    `python -m tools.reference` copies these descriptions into the documentation. A limit whose default is 0 is off by
    default, and 0 turns it off; all others must be more than 0.
    """

    streams_max: Annotated[int, _is("number of streams and tables; a create beyond it gets 403; 0: no limit")] = 0
    stream_bytes_max: Annotated[
        int,
        _is("size of a stream or table, without inherited data of a fork; an append beyond it gets 413; 0: no limit"),
    ] = 0
    requests_per_s_per_identity: Annotated[
        int, _is("requests per second of a token, or of an address if there is no token (429); 0: no limit")
    ] = 0
    requests_per_s_per_address: Annotated[
        int, _is("requests per second of an IPv4 address or an IPv6 /64 network (429); 0: no limit")
    ] = 0
    bytes_per_s_per_identity: Annotated[
        int, _is("bytes of bodies per second, received and sent, of a token or address (429); 0: no limit")
    ] = 0
    bytes_per_s_per_address: Annotated[int, _is("the same for an address (429); 0: no limit")] = 0
    live_readers_max: Annotated[
        int, _is("open live reads: long-polls, feeds and held reads of tables (503); 0: no limit")
    ] = 0
    live_readers_per_identity_max: Annotated[int, _is("the same for one token or address (429); 0: no limit")] = 0
    memory_bytes_max: Annotated[
        int, _is("resident memory; above 90 % of it, writes get 503 and reads continue; 0: no limit")
    ] = 0
    connections_per_address_max: Annotated[
        int,
        _is("open connections of an address (429), except trusted proxies; native edge only; 0: no limit"),
    ] = 0
    request_wait_s_max: Annotated[
        float, _is("how long a request waits for its turn under overload before it gets 503; native edge only")
    ] = 0.2
    body_bytes_max: Annotated[int, _is("size of a request body (413)")] = 16 * 1024 * 1024
    messages_per_append_max: Annotated[int, _is("messages in one JSON body (413)")] = 1_000_000
    header_bytes_max: Annotated[int, _is("size of the headers of a request, of which there are 200 at most (431)")] = (
        32 * 1024
    )
    url_bytes_max: Annotated[int, _is("length of the URL of a request (414)")] = 8 * 1024
    read_chunk_bytes: Annotated[int, _is("size of one response to a catch-up read")] = 2 * 1024 * 1024
    sse_chunk_bytes: Annotated[int, _is("size of an event while a feed catches up")] = 256 * 1024
    connections_max: Annotated[
        int, _is("open connections (503); fewer if the system allows too few file descriptors")
    ] = 65_536
    pipeline_requests_max: Annotated[int, _is("pipelined requests that wait on a connection")] = 16
    pipeline_bytes_max: Annotated[int, _is("size of these requests")] = 1024 * 1024
    request_bytes_in_flight_max: Annotated[
        int, _is("size of the requests that are incomplete or waiting, over all connections (503)")
    ] = 256 * 1024 * 1024
    response_bytes_in_flight_max: Annotated[
        int, _is("size of the responses that clients have not read yet, over all connections; beyond it reads get 503")
    ] = 256 * 1024 * 1024
    large_read_bytes_max: Annotated[
        int, _is("size of the large records that are being sent, each counted once; beyond it reads of them get 503")
    ] = 128 * 1024 * 1024
    write_buffer_bytes: Annotated[
        int, _is("unsent bytes of a connection above which the server stops writing to it")
    ] = 256 * 1024
    live_buffer_bytes: Annotated[int, _is("the same for a feed under an ASGI server")] = 256 * 1024
    long_poll_s: Annotated[float, _is("how long a long-poll waits")] = 30.0
    sse_lifetime_s: Annotated[float, _is("how long a feed stays open")] = 60.0
    sse_keep_alive_s: Annotated[float, _is("silence on a feed before a keep-alive comment is sent")] = 15.0
    idle_s: Annotated[float, _is("how long a connection without a request stays open")] = 75.0
    header_s: Annotated[float, _is("time from the first byte of a request to the end of its headers (408)")] = 10.0
    tls_handshake_s: Annotated[float, _is("time from a new connection to the end of its TLS handshake")] = 10.0
    body_stall_s: Annotated[float, _is("time between two pieces of a body (408)")] = 30.0
    body_bytes_per_s_min: Annotated[int, _is("minimum average rate of a body, checked after `body_stall_s` (408)")] = (
        500
    )
    write_stall_s: Annotated[
        float, _is("how long a client may read nothing of a response before its connection is closed")
    ] = 60.0
    linger_s: Annotated[
        float, _is("how long the server keeps reading after it refused a request, so that the client gets the response")
    ] = 2.0
    half_closed_s: Annotated[
        float, _is("how long responses are still sent to a client that has closed its sending side")
    ] = 5.0
    expiry_sweep_s: Annotated[float, _is("interval of checks for expired streams")] = 1.0
    expiry_grace_s: Annotated[
        float, _is("time after a start before the server deletes streams that expired while it was down")
    ] = 600.0
    commit_backlog_bytes: Annotated[int, _is("size of the accepted writes that wait for the disk (503)")] = (
        64 * 1024 * 1024
    )
    read_bytes_per_s_while_writing: Annotated[int, _is("rate of all large reads together while there are appends")] = (
        256 * 1024 * 1024
    )
    segment_bytes: Annotated[int, _is("size of a journal segment")] = 32 * 1024 * 1024
    unfolded_segments_max: Annotated[int, _is("unfolded segments above which writers wait for the fold")] = 6
    fold_idle_s: Annotated[float, _is("time without writes after which the journal is folded")] = 2.0
    reclaim_chunks: Annotated[int, _is("chunks of deleted streams that are removed in one step")] = 64
    disk_reserve_bytes: Annotated[int, _is("disk space kept for deletions and the fold when the disk is full")] = (
        64 * 1024 * 1024
    )
    streams_loaded_max: Annotated[int, _is("streams whose state is kept in memory")] = 100_000
    documents_loaded_max: Annotated[int, _is("documents kept in memory")] = 10_000
    active_keys_max: Annotated[int, _is("live keys of an active view (409)")] = 1_000_000
    active_bytes_max: Annotated[
        int,
        _is(
            "memory of the active views of all tables; the least recently used ones are evicted. Views are built one "
            "after the other"
        ),
    ] = 256 * 1024 * 1024
    compress_inline_bytes: Annotated[int, _is("larger bodies are compressed in a thread")] = 16 * 1024
    views_max: Annotated[int, _is("number of views (409)")] = 1_000
    nurls_per_table_max: Annotated[int, _is("number of NURLs of a table (409)")] = 100
    nurls_max: Annotated[int, _is("number of NURLs of all tables (409)")] = 10_000
    notify_posts_max: Annotated[int, _is("concurrent POSTs to NURLs")] = 64
    notify_retry_s: Annotated[float, _is("wait after the first failure of a NURL; doubles with each further one")] = 1.0
    notify_retry_max_s: Annotated[float, _is("longest wait between two attempts")] = 3_600.0
    notify_give_up_s: Annotated[float, _is("how long a NURL may fail before it is dropped")] = 86_400.0
    outbound_connections_max: Annotated[int, _is("outbound connections, to URLs that clients gave")] = 256
    outbound_connections_per_host_max: Annotated[int, _is("the same to one host")] = 32
    outbound_connect_s: Annotated[
        float, _is("timeout for name lookup and connection, and again for the TLS handshake")
    ] = 10.0
    outbound_request_s: Annotated[
        float, _is("timeout of an outbound request; if the response is streamed, until its headers have arrived")
    ] = 30.0
    outbound_idle_s: Annotated[float, _is("silence after which a streamed outbound response counts as dead")] = 60.0
    outbound_body_bytes_max: Annotated[int, _is("size of an outbound response, unless it is streamed")] = 1024 * 1024


def parse_limits(settings: Iterable[str]) -> Limits:
    """Return the default limits, changed by settings of the form `name=value`."""
    return set_limits({name: value for name, _, value in (setting.partition("=") for setting in settings)})


def set_limits(given: Mapping[str, object]) -> Limits:
    """Return the default limits, changed by these values. Raises ValueError for an unknown name or invalid value."""
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
            raise ValueError(
                f"{name} must be {'0 (no limit) or ' if may_be_off else ''}more than 0 and finite, got {value!r}"
            )
    return msgspec.structs.replace(Limits(), **numbers)
