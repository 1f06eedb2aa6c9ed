"""Limits of the client, StreamDB, the commands and the demo."""

from __future__ import annotations

# The client. The arguments of a producer override its limits.
PRODUCER_BATCH_BYTES = 1024 * 1024
PRODUCER_LINGER_S = 0.005
PRODUCER_IN_FLIGHT_MAX = 5
PRODUCER_QUEUE_BYTES = 16 * 1024 * 1024
PRODUCER_DELIVERY_TIMEOUT_S = 120.0
PRODUCER_LEAVE_S = 1.0  # how long an interrupted program waits for its producer
FETCH_HEAD_BYTES_MAX = 64 * 1024  # of the headers of a response, read without httpx
FETCH_AHEAD = 4  # responses that are received before they are processed
CUT_STEP_BYTES = 256 * 1024  # of a response, scanned at once for the ends of messages; a multiple of 64
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
FOLLOW_URL_BYTES_MAX = 4 * 1024  # of the list of followed streams; a longer one is the body of a POST
RETRY_ATTEMPTS_MAX = 6
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 10.0
RETRY_AWAY_MAX_S = 2.0  # longest wait between two attempts meanwhile, unless the server asks for more
RETRY_PATIENCE_S = 30.0  # how long requests are retried while a server that has responded before is away
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
LONG_POLL_TIMEOUT_S = 90.0
SSE_IDLE_TIMEOUT_S = 45.0
SSE_FIRST_TIMEOUT_S = 10.0  # until server-sent events have worked once
IDLE_CONNECTIONS_MAX = 20  # kept open for the next request
POOL_RESPONSES_MAX = 50  # open at a time in one pool of connections; further ones use another pool
PRODUCER_CLAIMS_MAX = 3  # consecutive attempts to claim a higher epoch
SPLIT_TRIES_MAX = 64  # commas tried from the end of a partial response before more of it is awaited
ERROR_DETAIL_BYTES_MAX = 500  # of a body that is not a problem document, shown in an error

# Workers and webhooks.
HEARTBEATS_PER_LEASE = 3  # heartbeats of a worker in the time of a lease
WORK_RECHECK_S = 60.0  # about how often a worker looks for pending events although no wake event came
WORK_JITTER_MAX_S = 0.25  # longest random wait before a claim, if nearly all claims are lost to other workers
WORK_CONTENTION_WEIGHT = 0.1  # of the last claim in the share of claims that were lost
WORK_FAILED_FIRST_S = 1.0  # wait before a subscription whose processing failed is claimed again by the same worker
WORK_FAILED_MAX_S = 60.0
WORK_SUBSCRIPTIONS_MAX = 100_000  # that a worker remembers
WORK_STOP_S = 5.0  # how long a worker that ends waits for its threads
JWKS_AGE_S = 300.0  # how long fetched keys are used, if the response does not say
JWKS_AGE_MIN_S = 10.0
JWKS_AGE_MAX_S = 86_400.0
JWKS_STALE_S = 3_600.0  # how much longer they are used while they cannot be fetched
JWKS_REFETCH_S = 10.0  # minimum time between two fetches for keys that are not known
JWKS_BYTES_MAX = 256 * 1024
JWKS_TIMEOUT_S = 10.0

# StreamDB.
STATE_RANKS_MOVED_PART = 32  # an ordered query sorts all again if more than this part (1/32) of its rows changed
STATE_TXIDS_KEPT = 10_000
STATE_CHECKPOINT_EVERY_S = 30.0
STATE_AWAIT_TXID_S = 5.0
STATE_TRANSACTION_S = 30.0
STATE_CHANGES_WAITING_MAX = 100_000  # queued for one iterator over changes; with more, it ends with an error
STATE_SNAPSHOTS_TRIED = 3
STATE_CLOSE_S = 5.0  # how long `close` waits for the thread that follows the stream

# The commands.
CLI_READ_BYTES = 64 * 1024  # of standard input or a file, in one message of a stream that is not JSON
CLI_PROGRESS_AFTER_S = 1.0  # a command that ends sooner shows no progress bar
CLI_TOP_S = 2.0  # refresh interval of `headwater top`
CLI_STATUS_S = 10.0  # between two status lines of a mirror that receives rows
CLI_STATUS_RATE_S = 5.0  # window of the rows per second
CLI_FOLDED_COLUMN_MIN = 12  # narrowest column with wrapped text; below it, fields are listed instead of a table
CLI_ARRAY_BYTES_MAX = 256 * 1024 * 1024  # of a JSON array that is appended as one batch
CLI_WORK_LOOK_S = 0.2  # between two looks whether the command of a worker has lost its lease
CLI_WORK_END_S = 5.0  # for such a command to end after SIGTERM
CLI_STREAMS_KNOWN_MAX = 100_000  # whose content types a worker remembers
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
ENTITIES_PAGE = 1_000  # entities of a state, requested at a time
COMPACTION_ANSWER_TIMEOUT_S = 3_600.0  # for the answer to a request to compact a stream now

# SQL
SQL_SAMPLE_MESSAGES = 1000  # from each place of a stream, for the types of its fields
SQL_SAMPLE_BYTES = 1024 * 1024  # a longer range is sampled in several places
SQL_FIELDS_MAX = 2000  # that one query can use; objects with ids as names have any number
SQL_SAMPLED_STREAMS = 16  # of a glob
SQL_SUGGESTED_PATHS = 1000  # looked at for a path that is similar to one that does not exist
SQL_BODY_ROWS = 10_000  # of a state or a table, in one batch
SQL_RETRY_S = 30.0  # of consecutive failures, after which a query ends
SQL_TABLE_ROWS = 1000  # printed as a table; more need --rows or another format
SQL_OUTPUT_ROWS = 100_000  # of a result, in one batch
SQL_FOLLOW_S = 1.0  # between two runs of a query that is followed
SQL_FOLLOW_ROWS_MAX = 1_000_000  # of a result that is followed, which is in memory
SQL_HISTORY_LINES = 1000
