"""Limits of the protocols: requests, tables, and following a table."""

from __future__ import annotations

# Numbers of the protocol.
PRODUCER_INTEGER_MAX = 2**53 - 1  # the largest integer that JavaScript represents exactly
OFFSET_DIGITS = 16
CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 20
CURSOR_JITTER_MAX_S = 3_600
CURSOR_LENGTH_MAX = 64
CACHE_MAX_AGE_S = 60
CACHE_STALE_S = 300
CACHE_PAGE_S = 3_600  # for responses before the tail, which change only if the server is restored
CACHE_LASTING_S = 365 * 86_400  # for responses that never change
COMPRESS_BYTES_MIN = 1_024
ENCODERS_MAX = 64  # streamed responses compressed at the same time; further ones are sent uncompressed

JOINED_PIECE_BYTES = 16 * 1024  # smaller pieces of received bodies are joined, because each takes memory of its own
BODY_PIECE_BYTES = 128 * 1024  # a large body is written in pieces of this size
SSE_PIECE_BYTES = 48 * 1024  # stream data encoded in one step; a multiple of 3, for base64
FRAMES_SHARED_MAX = (
    256  # of a slice, for readers with different cursors, which clients can choose; a random one is among 180
)
COMBINED_READS_AT_ONCE = 2  # streams of one combined feed that are read at the same time, each a slice
COMBINED_LANES_PER_TURN = 32  # streams of a combined feed that are served before other connections get their turn
COMBINED_URL_BYTES_MAX = 64 * 1024  # of the URL of a combined feed, which lists its streams
COMBINED_FORM_BYTES_MAX = 2 * 1024 * 1024  # the same in the body of a POST
COMBINED_PARAMETERS_MAX = 64  # of a combined feed, beside its streams
COMPOSE_SOURCES_MAX = 1_000  # of one append
COMPOSE_FORM_BYTES_MAX = 256 * 1024  # of the list of sources, which is parsed on the loop
COMPOSE_READ_BYTES = 512 * 1024  # of a source, read in one step
COMPOSES_AT_ONCE = 4  # whose data is in memory; each has at most the size of a body
COMPOSES_WAITING_MAX = 1_000  # further ones are refused
FRAMES_KEPT = 2  # encoded frames of a large slice, kept for other readers of it
TURNS_S = 0.005  # time spent on writing large responses in one turn of the loop
SSE_LIFETIME_JITTER = 0.5  # the part of the lifetime of a feed that is random
FRAME_BYTES_MAX = 4 * 1024  # up to this size, the data of a slice is one frame; larger data is written in several

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
RETAIN_S_MAX = TTL_S_MAX
RETAIN_BYTES_MAX = PRODUCER_INTEGER_MAX
RETAIN_MESSAGES_MAX = PRODUCER_INTEGER_MAX
COMPACT_AFTER_S_MAX = TTL_S_MAX
FORK_DEPTH_MAX = 128
PRODUCER_IDLE_S = 30 * 86_400  # after which a stream forgets the sequence of a producer, but not its epoch
PRODUCERS_EXPIRED_EVERY = 1_024  # idle producers that are expired in one step, in the index
PRODUCERS_EXPIRED_AT_ONCE = 2  # idle producers of a stream that a new one expires, in memory
PRODUCER_KEY_LENGTH_MAX = 64  # of the id of a producer that is kept; of a longer id, a digest is kept
LIST_PAGE_MAX = 1_000
SNAPSHOT_PREFIX = "\x03"  # before the path of a stream or table, in the paths of its snapshots
PATH_KINDS = (
    "",
    "\x01",
    "\x03",
    "\x03\x01",
)  # before the names of streams and tables in the log, and of their snapshots
LIST_PAGE_DEFAULT = 100
LIST_STEP_PATHS = 250  # examined at a time for a caller that may not read all of them
LIST_MATCHES_MAX = 5_000  # comparisons of a path with a scope for one page, which may then have few streams
LIST_MATCHES_PER_TURN = 500  # comparisons before the loop continues with other tasks
LIST_CURSOR_STEP_BYTES = 64  # encrypted cursors have a multiple of this length, which hides that of the path
RECORDS_PAGE_MAX = 10_000
PRODUCERS_SHOWN_MAX = 100  # in the details of a stream: those with the newest requests
FORKS_EXAMINED_MAX = 10_000  # streams that are examined for one page of the forks of a stream
RECORDS_PAGE_DEFAULT = 1_000
SPLITS_MAX = 10_000

# Tables: rows and queries.
SEQNO_MAX = 2**63 - 1  # the largest signed 64-bit integer
SIZE_DIGITS_MAX = 18  # of a size in a header; longer numbers are invalid
SEQNO_DIGITS_MAX = 19
ROW_BYTES_MAX = 1024 * 1024  # the longest row that a client accepts, without its newline
CHANGE_BYTES_MAX = ROW_BYTES_MAX - 64  # of an appended line: the row has the SeqNo and timestamp in addition
CHANGE_OVERHEAD_BYTES = 4  # of a line: action, tabs and newline
KEY_BYTES_MAX = 1_024
SCHEMA_LENGTH_MAX = 128
SCHEMA_VERSION_DIGITS_MAX = 9
TABLE_TIMEOUT_S = 30.0  # how long a read is held open, unless the query sets another time
TABLE_TIMEOUT_MAX_S = 300.0
TABLE_IDLE_S = 10.0  # a held read ends after this time without a new row
TABLE_IDLE_MAX_S = 300.0
CHANGES_INLINE_BYTES = 1024 * 1024  # a larger body is checked in a thread
ROWS_INLINE_BYTES = 64 * 1024  # the same for rows of a mirror
CHANGES_MAX = 100_000  # in one append, so that numbering them does not block the loop

# States: entities by URL.
ENTITY_NAME_BYTES_MAX = 2_048  # of the type and key of an entity: a URL names it, in which a byte can take three
ENTITY_RUN_BYTES = 2 * 1024  # of entities that are kept as one object; a change copies at most twice as many
ENTITY_RUN_OWN_BYTES = 128  # of memory for a run, beside its entities
STATE_PAGE_DEFAULT = 100
STATE_PAGE_MAX = 10_000
STATE_PAGE_BYTES = 1024 * 1024  # of the entities of a page, unless one is larger

# Notify forms.
NOTIFY_BODY_BYTES_MAX = 64 * 1024
NOTIFY_NURLS_MAX = 64  # in one form
EVENT_TYPE_LENGTH_MAX = 64
URL_LENGTH_MAX = 2_048  # of a SURL or a NURL
NURL_SEEN_MS = 86_400_000  # minimum time between two records that a NURL was advertised again
NOTIFY_ANSWER_S = 10.0  # timeout for the response of a NURL
NOTIFY_POSTS_PER_HOST_MAX = 8  # concurrent POSTs, so that a slow host does not delay the others
NOTIFY_ANSWER_BYTES_MAX = 64 * 1024  # of the response of a NURL, which is ignored
NOTIFY_REASON_LENGTH_MAX = 200  # of the stored reason why a NURL was dropped

# Subscriptions: signatures of webhooks.
ED25519_KEY_BYTES = 32
ED25519_SIGNATURE_BYTES = 64
WEBHOOK_TOLERANCE_S = 300.0  # greatest difference between the time of a signature and the receiver's clock
WEBHOOK_SIGNATURE_LENGTH_MAX = 1_024  # of the header
WEBHOOK_KEYS_MAX = 64  # in a JWK Set

# Subscriptions: what a request may contain, leases and wakes.
LEASE_TTL_MIN_MS = 1_000
LEASE_TTL_MAX_MS = 600_000
LEASE_TTL_DEFAULT_MS = 30_000
SUBSCRIPTION_ID_LENGTH_MAX = 256
SUBSCRIPTION_TEXT_LENGTH_MAX = 2_048  # of paths, names of workers and descriptions
SUBSCRIPTION_BODY_BYTES_MAX = 2 * 1024 * 1024  # of a request; it is decoded in one step
SUBSCRIPTION_MEMBERS_PER_REQUEST = 2_000  # streams that a request names or acks
SUBSCRIPTION_DEEP_STARS_MAX = 8  # `**` in a pattern
SUBSCRIPTION_PATTERN_SEGMENTS_MAX = 32
SUBSCRIPTION_MATCH_STEPS = 2_000  # of finding the subscriptions of a path at once; more is done in turns
SUBSCRIPTIONS_PER_TURN = 500  # that are counted or listed in one turn, and streams that are looked at
SUBSCRIPTION_NOTES_PER_TURN = 64  # subscriptions that are told of news in one turn, because each then begins a wake
SUBSCRIPTION_MATCHES_LATE_MAX = 10_000  # paths whose subscriptions are found in turns; beyond it all are scanned
SUBSCRIPTION_PENDING_MAX = 100_000  # pending streams of a subscription that are kept in memory; others are looked up
SUBSCRIPTION_SCANS_AT_ONCE = 4  # subscriptions that look at all their links at the same time
SUBSCRIPTION_WRITES = 1_000  # documents that are written or deleted in one step
SUBSCRIPTION_LAG_STREAMS_MAX = 1_000  # pending streams of a page of subscriptions whose lag is computed
SUBSCRIPTION_STREAMS_SHOWN = 1_000  # of a page of the members of a subscription
WAKE_STREAMS_MAX = 1_000  # streams that a wake or a claim lists; the others follow with the next wake
WAKE_TOKEN_S = 3_600  # after which the token of a wake that is over has expired; before that, its user is fenced
WAKE_TOLD_AGAIN_S = 60.0  # after which a wake event that nobody has claimed is written again
WAKE_TOLD_AGAIN_MAX_S = 3_600.0
WEBHOOK_RETRY_FIRST_S = 1.0
WEBHOOK_RETRY_MAX_S = 60.0
WEBHOOK_RETRY_JITTER = 0.2  # the part of a wait between retries that is random
WEBHOOK_ANSWER_S = 60.0  # how long a receiver may take to answer, if the lease is not shorter
WEBHOOK_ANSWER_BYTES_MAX = 64 * 1024
WEBHOOK_POSTS_PER_HOST_MAX = 8  # webhooks under way to one host for the subscriptions of one identity
WEBHOOK_HOSTS_KNOWN_MAX = 100_000  # hosts that have answered their last webhook
WEBHOOK_REASON_LENGTH_MAX = 200  # of the stored reason why a delivery failed
WEBHOOK_KEY_KEPT_S = 86_400  # how long the public key before a rotation stays published

# Following a table.
FOLLOW_ROWS_REMEMBERED = 1_024  # to distinguish a repeated row from another row with the same SeqNo
FOLLOW_WINDOW_ROWS_MAX = 16_384  # rows of a response that wait for rows with smaller SeqNos
FOLLOW_WINDOW_BYTES_MAX = 16 * 1024 * 1024  # of these rows, about
FOLLOW_GAPS_REMEMBERED = 1_024  # ranges of skipped SeqNos, to detect a row that arrives too late
FOLLOW_REPEATED_BYTES_MAX = 256 * 1024 * 1024  # of repeated rows in a response; with more, the read fails
FOLLOW_TRIES_MAX = 6  # consecutive responses that lack rows or are cut off
FOLLOW_POLL_S = 0.5  # first wait after a response that ended at once without a new row
FOLLOW_POLL_MAX_S = 10.0
FOLLOW_HOLD_S = TABLE_TIMEOUT_MAX_S  # the `timeout` that a follower requests from the other server
FOLLOW_IDLE_S = 45.0  # the idle time that it requests
FOLLOW_SILENCE_S = 15.0  # silence beyond the idle time after which the connection counts as dead
FOLLOW_NOTIFIED_S = 1.0  # after a Notify, a held read that brings no row in this time is replaced by a new one
FOLLOW_BATCH_BYTES = 256 * 1024  # of rows that wait while the previous append is under way
FOLLOW_REPAIR_BYTES_MAX = 64 * 1024 * 1024  # of live rows of a remote table, to find what a mirror has too much
FOLLOW_REFUSED_S = 60.0  # wait after a response that is not a table, or if the local table cannot be written
FOLLOW_REGISTER_S = 6 * 3_600.0  # interval at which a follower registers its NURL again
FOLLOW_REGISTER_PAUSE_S = 10.0  # minimum time between two registrations
FOLLOWERS_MAX = 256  # SURLs that a server follows
INFLATE_PIECE_BYTES = 64 * 1024
INFLATE_WINDOW_BYTES_MAX = 8 * 1024 * 1024  # window of a decompressor
