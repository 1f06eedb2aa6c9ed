"""Limits of the log, the store and backups."""

from __future__ import annotations

# The log.
JSON_COMMAS_AT_ONCE = 50_000  # in the text of one parser call: an upper bound of the messages that become objects
JSON_INLINE_BYTES = 1024 * 1024  # parsed on the loop; more is parsed in a thread
JSON_STEP_BYTES = 64 * 1024
JSON_GUESSES_MAX = 4  # attempts to cut a long array at a guessed comma before its elements are parsed one by one

# Compaction.
COMPACT_GRACE_S = 60  # at least how long the bytes that a snapshot has replaced can be read
COMPACT_AFTER_S_MIN = 10
COMPACT_READ_BYTES = 1024 * 1024  # of a stream, in one piece
COMPACT_RECORD_BYTES = 48 * 1024  # of a snapshot, in one append
COMPACT_LOOK_S_MIN = 5.0  # until a stream is looked at again
COMPACT_LOOK_S_MAX = 600.0
COMPACT_RETRY_S = 10.0  # after a failure; doubles with each further one
COMPACT_RETRY_MAX_S = 3_600.0
COMPACT_FIND_S = 0.05  # between two pages of streams, when the streams to compact are found at the start
COMPACT_TIMEOUT_S = 300.0  # for one piece; a worker that takes longer is killed

# Copies of stores.
COPY_BATCH_BYTES = 4 * 1024 * 1024  # read and written at once
COPY_STREAMS = 500  # written at once
COPY_DOCUMENTS = 200

# The store.
CHUNK_BYTES = 1024 * 1024  # of a stream's bytes in one row of the index
SMALL_CHUNK_BYTES = 64 * 1024  # smaller ones are merged
JOURNAL_DAMAGE_BATCHES_MAX = 4_096  # how far after a damaged batch the next valid one is searched
ARRAY_RECORDS_MIN = 64  # of a stream in memory; the ends and times of fewer records are in tuples
SORTED_RUN_KEYS = 1_000  # of sorted keys in one list; an insertion moves at most twice as many
MAINTAIN_S = 0.25  # interval of background maintenance
SEGMENT_CHANGES_MAX = 50_000  # streams that a segment changes before it is sealed, because each takes memory until then
YIELD_EVERY_STREAMS = 500  # a loop over many streams yields to other tasks after this many
LOCK_WAIT_S = 10.0  # for the fold worker of a killed server to release the lock
INDEX_LOCK_WAIT_S = 30.0
DAMAGE_LOGGED_MAX = 1_000  # damaged rows that are logged, each once
INDEX_READERS = 2  # threads that read the index, each with a connection
LOOKUPS_AT_ONCE = 64  # rows of the index that a thread looks up before it lets the loop continue
SMALL_READ_BYTES = 16 * 1024  # reads of the index of at most this size are answered in groups
READ_AHEAD_BYTES_MIN = 256 * 1024  # after a read of this size from the index, the next piece is read ahead
READ_AHEAD_PIECES_MAX = 4
BLOB_BYTES_MIN = 16 * 1024  # of a chunk; smaller ones are read with their row
INDEX_ROW_BYTES = 256  # what a row of the index takes in addition to the bytes of its stream, about
RECLAIM_STEP_S = 0.05  # of one step of reclaiming, after which other work of the fold worker has its turn
RECLAIM_STEP_BYTES = 64 * 1024 * 1024  # of rows that a step removes in one transaction
RECLAIM_STREAMS = 256  # deleted streams whose rows are removed together
RECLAIM_ROWS = 1_024  # of a table, removed by one statement
RECLAIM_PAGES = 1_024  # of the index, returned to the file system at a time
RECLAIM_PAUSE_S = 0.005  # between steps while nothing waits for the fold
RECLAIM_FACTOR = 2  # while segments wait, each fold is followed by reclaiming this multiple of what it added
FOLD_DELETED_S = 60.0  # after a deletion, its segment is sealed and folded, so that space returns despite other writes
FOLD_NICE = 10
FOLD_FREE_BYTES_KEPT = 128 * 1024 * 1024  # freed memory that the fold worker keeps while it has work
FOLD_IDLE_S = 1.0  # without a task, after which the fold worker returns it
FOLD_TIMEOUT_S = 300.0  # for one segment; a fold worker that takes longer is killed and started again
FOLD_STOP_S = 10.0  # how long a stopping server waits for the fold worker
FOLD_RETRY_S = 0.25  # after a failure of the fold worker; doubles with each further one
FOLD_RETRY_MAX_S = 10.0
FOLD_FAILURES_UNREADY = 4  # consecutive failures of the fold after which the server is not ready
FULL_RETRY_S = 1.0  # interval of checks for free space on a full disk
FULL_CHECKS = 2  # consecutive checks that must find space before writes are accepted again
FULL_SEGMENTS = 2  # that must fit, in addition to the reserve
FULL_SEGMENT_BYTES = 256 * 1024  # added to a segment on a full disk, if there is no room for a whole one
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
BACKUP_KEEP_S_MIN = 60.0  # of --keep: the index is copied twice in this time
BACKUP_PRUNE_S = 3_600.0  # interval at which old data is removed
BACKUP_RETRY_S = 1.0  # after the first failure of a target; doubles with each further one
BACKUP_RETRY_MAX_S = 60.0
BACKUP_CONNECT_S = 10.0  # to a bucket
BACKUP_ANSWER_S = 30.0
BACKUP_TARGET_S = 120.0  # one operation on a target; after this it counts as hanging
TIMELINE_GAP_MAX = 1 << 32  # in microseconds: how far a timeline's id is above the ids before it, a random number
PROMOTION_CLOCKS_S = 86_400.0  # how far the clock of a replaced server may be ahead
LEASE_DRIFT = 1.1  # how much faster the clock of the machine that takes a lease may run
LEASE_S_MAX = 3_600.0  # of any server; how long to wait for a lease whose file is not readable
LEASE_RENEWALS = 3  # in the time of a lease
BACKUP_STATUS_S = 15.0  # the same for `headwater backup status`
RETENTION_MARKS = 64  # counts of messages in the state of a stream, for the messages that it keeps
COUNT_STEP_BYTES = 256 * 1024  # of a stream whose messages are counted, read at a time

# A store that several servers share.
SHARED_BATCHES_AT_ONCE = 2  # that a server commits at a time

# A store in PostgreSQL.
POSTGRES_CONNECT_S = 5.0  # for a connection, unless the URL has connect_timeout
POSTGRES_ANSWER_S = 30.0  # for one statement; after this the connection counts as lost
POSTGRES_KEEPALIVE_S = 5  # of silence, after which the kernel asks whether the other side is there
POSTGRES_KEEPALIVES = 3  # unanswered questions, one each 2 s, after which the connection is lost
POSTGRES_IDLE_TRANSACTION_S = 5.0  # after which PostgreSQL ends a transaction of a server that hangs
POSTGRES_READERS = 4  # connections for reads
POSTGRES_READER_WAIT_S = 10.0  # for a free connection for reads
POSTGRES_RETRY_S = 5.0  # how long a batch that was not stored is tried again after its connection was lost
POSTGRES_RECONNECT_S = 0.05  # after the first failure; doubles with each further one
POSTGRES_RECONNECT_MAX_S = 2.0
POSTGRES_STOP_S = 2.5  # how long a server that stops waits for the outcome of a batch
POSTGRES_IN_USE_S = 5.0  # how long a copy waits for a database that is in use, maybe by a process that was killed
POSTGRES_LOCKED_S = 2.0  # how long states stay locked without a commit
POSTGRES_NAME_LOCKS = 256  # locks that all paths and documents share
POSTGRES_CHUNK_BYTES = 256 * 1024  # of a stream's bytes in one row, unless a record is larger
POSTGRES_PACK_BYTES = 64 * 1024  # of a stream in small rows, after which they are packed
POSTGRES_PACK_ROWS = 128
POSTGRES_PACK_AT_ONCE_BYTES = 8 * 1024 * 1024  # that are packed in one transaction
POSTGRES_PACK_AT_ONCE_ROWS = 2_048  # of each stream
POSTGRES_PACK_STREAMS = 32  # that are packed in one transaction
POSTGRES_PACK_S = 2.0  # after which other background work gets its turn
POSTGRES_MERGED_CHUNKS = 64  # of a stream that are looked at, to merge them with new bytes
POSTGRES_MERGE_FACTOR = 8  # a small chunk is written again into one that is so many times as large
POSTGRES_MAINTAIN_S = 0.25  # interval of background work
POSTGRES_SWEEP_S = 600.0  # interval at which small rows that other servers have left are looked for
POSTGRES_CLOCK_WARN_S = 10.0  # between the clocks of a server and of PostgreSQL, before it is logged
POSTGRES_CLOCK_TRIES = 3  # measurements of the difference, until one is good
POSTGRES_CLOCK_TRIP_S = 0.1  # the longest round trip of a good one, whose error is at most half of it
POSTGRES_TIDY_S = 30.0  # interval at which what servers have left is removed
POSTGRES_MOVES_S = 600.0  # how long it is known which streams a batch has changed
POSTGRES_SERVER_S = 86_400.0  # after which the row of a server that is gone is removed
POSTGRES_RECLAIM_ROWS = 256  # of bytes that nobody reads, removed by one statement
POSTGRES_EXPIRED_AT_ONCE = 1_024  # producers that were idle for long
POSTGRES_NOTIFY_S = 0.005  # from one notification to the next
POSTGRES_NOTIFY_END_S = 1.0  # how long a server that stops waits until its last notification is sent
POSTGRES_NOTIFY_BYTES = 7_000  # of one notification; PostgreSQL allows 8,000
