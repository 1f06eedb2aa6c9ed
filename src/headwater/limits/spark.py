"""Limits of the Spark formats and the pipeline."""

from __future__ import annotations

# The Spark formats. Options override most of these.
SPARK_LATEST_BYTES = 128 * 1024 * 1024  # of events that a task holds to leave out those that are replaced
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
SPARK_FREE_BYTES_KEPT = 256 * 1024 * 1024  # freed memory that a worker does not return to the kernel
SPARK_WRITE_ID_BYTES_MAX = 128
SPARK_JAVA_VERSION_S = 60.0  # timeout of `java -version`

# The pipeline.
SPARK_SHARING_ROUNDS_MAX = 16  # in which the limits of a batch are divided among streams
PIPELINE_POLL_S = 1.0  # interval at which an idle job checks for new data
PIPELINE_LOCK_WAIT_S = 0.5  # for a run that has just ended and still holds its checkpoint
PIPELINE_LOOK_S = 0.5  # interval at which the state of running jobs is read
PIPELINE_MASTER_CONNECT_S = 10.0  # for a connection to the master of a standalone cluster
PIPELINE_LINE_EVERY_S = 5.0  # between two status lines if there is no terminal
PIPELINE_STREAMS_SHOWN = 8  # the streams with the largest lag
PIPELINE_FILE_BYTES = 128 * 1024 * 1024  # of rows in memory before a task writes them to files
PIPELINE_ARCHIVE_EVERY_S = 10.0  # minimum time between two batches of an archive, because each makes files
PIPELINE_COMPACT_EVERY = 60  # batches of an archive after which small files are merged
PIPELINE_MATERIALIZE_EVERY_S = 30.0  # the same for materialize, whose batches rewrite files
PIPELINE_BUCKETS_MIN = 8  # of a new materialized table, if the number is not set; a batch rewrites up to all of them
PIPELINE_BUCKETS_MAX = 1_024
PIPELINE_BUCKETS_SET_MAX = 65_536  # that can be set
PIPELINE_BUCKET_STREAM_BYTES = 32 * 1024 * 1024  # of streams for each bucket of a new table: about 300,000 events
PIPELINE_BUCKET_BYTES_MAX = 256 * 1024 * 1024  # of a bucket, which a task holds in memory: the job warns above it
PIPELINE_BATCH_BYTES = 1024 * 1024 * 1024  # of streams in one batch: tasks hold the events of a bucket in memory
PIPELINE_PARTITION_BYTES_MAX = 512 * 1024 * 1024  # of a stream, for one task that leaves out replaced events
PIPELINE_DRIVER_EVENTS = 20_000  # a batch of at most this size is merged by the driver
PIPELINE_DRIVER_EVENT_BYTES = 32 * 1024 * 1024  # of streams in such a batch, which the driver holds in memory
PIPELINE_DRIVER_BYTES = 64 * 1024 * 1024  # of files that the driver rewrites for a batch; tasks rewrite more
PIPELINE_DRIVER_STEP_BYTES = 1024 * 1024  # of files that a thread of the driver merges at once
PIPELINE_DRIVER_THREADS = 8
PIPELINE_SYNCS_AT_ONCE = 8  # files or directories of a table
PIPELINE_BUCKET_FILES_MAX = 8  # average files per bucket above which a small batch rewrites its buckets
PIPELINE_NESTED_DEPTH = 4  # of directories in which a job looks for other tables before it vacuums its own
PIPELINE_RETAIN_H = 24  # how long files and log entries are kept that the current version does not need
PIPELINE_HOUR_S = 3_600.0  # of that time; the bench of a day makes it shorter
PIPELINE_GROWTH_BATCHES = 10  # from which the growth of a table is estimated
PIPELINE_GROWTH_BYTES = 10 * 1000**3  # of files kept for readers of older versions, above which the job warns
PIPELINE_GROWTH_FILES = 250_000  # the same in files
PIPELINE_SNAPSHOT_EVERY_S = 600.0  # between two rounds of snapshots
PIPELINE_SNAPSHOT_GRACE_S = 3_600.0  # how long a snapshot is kept after the next one, for clients that still read it
PIPELINE_SNAPSHOTS_AT_ONCE = 200  # streams per step; a job can stop between two steps
PIPELINE_REPLAY_BYTES = 1024 * 1024  # in one append
PIPELINE_REPLAY_MESSAGES = 10_000  # in one append
PIPELINE_REPLAY_ATTEMPTS = 5  # of one append; before each, the target's content is checked
PIPELINE_REPLAY_PAUSE_S = 0.5  # before the second attempt
PIPELINE_SKIPPED_VERSIONS = 10  # versions that publish could not publish, in its checkpoint
PIPELINE_SHOWN_STREAMS = 5  # streams of an archive that an error names if none matches
JOB_ERROR_LENGTH_MAX = 500  # characters of the error of a job in one line
