"""Limits of the engine, the edges, access, views and outbound requests."""

from __future__ import annotations

# The engine.
COMMIT_S = 0.4  # if batches take longer to commit, fewer bytes may wait for the next one
COMMIT_BYTES_MIN = 16 * 1024 * 1024  # lower bound of the bytes that may wait
LARGE_READS_AT_ONCE = 2  # concurrent reads of large records from the store
LARGE_READ_BYTES = 64 * 1024  # reads of this size share a bounded rate while appends come in
YIELD_EVERY_SPLITS = 500  # splits found before the search yields to other tasks
DELIVERIES_PER_TURN = 500  # subscribers of a stream that are notified of a change in one turn of the loop
WAKES_PER_TURN = 50  # waiting reads that a change wakes in one turn, because each then prepares a response
UPDATE_BYTES_MAX = 256 * 1024  # of appends that live readers get in one notification
POSITION_MAX = 2**63 - 1  # of a stream
SLICES_KEPT = 16  # recent slices that were read, kept for other live readers at about the same position
SLICE_KEPT_BYTES_MAX = 128 * 1024  # of a slice that is kept; larger ones are shared while a reader has them
ROW_PROBE_BYTES = 16 * 1024  # of a table, read to find which rows are at a position
WRITING_MS = 50  # a stream of appends counts as ongoing for this long after the last one
TTL_RENEWAL_PARTS = 20  # a renewal is stored when 1/20 of the time-to-live has passed

# A store that several servers share.
VERSION_QUERIES_MAX = 4  # queries at a time for the versions of what is in memory
RECOUNT_S = (
    20.0  # until a server that shares a store counts its streams again, and what prefixes and tokens with quotas use
)
RECOUNT_SHARE = 0.05  # of the time that this may take
WATCH_POLL_MS = 1000  # how often a server looks for changes of which it was not told
WATCH_LOADS_MAX = 200  # streams that others have changed and a server loads in a poll
UNAVAILABLE_RETRY_S = 0.5  # until a database that is not available is asked again
PRODUCERS_LOADED_MAX = 200_000  # in memory, of all streams; with more, unused streams that have some are evicted
OVERDUE_TRIM_MS = 60_000  # between trims of streams that were due before the start, in the grace period
EXPIRE_EVICT_STEPS = 50  # of a sweep, after which unused streams are evicted
EXPIRE_STREAMS_MAX = 100  # in one step of a sweep; the next step begins when its deletions are durable
ROUTES_MAX = 128  # in the route table
TIMED_PER_S_MAX = 250  # up to this rate every request is timed
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
TEST_SERVER_STOP_S = 0.1  # how long the server of `headwater.testing` waits for requests that have begun to arrive
STOP_GRACE_S = 5.0  # how long a stopping server waits for requests that have begun to arrive, and their responses
STOP_LAST_S = 0.5  # how long it waits for clients to read the 503 to requests that are still not complete
ROLE_S = 5.0  # how long one of several servers has the role, unless it renews it
ROLE_LOOK_S = 1.0  # between two attempts to take or renew it
ROLE_MARGIN_S = 1.0  # how long before its end a server stops to use it
RELAY_S = 10.0  # how long a server waits for the answer of the one with the role
OUTCOME_S = 10.0  # how long the client of a write waits for a database that does not answer
RELAY_KEPT_S = 600  # requests to it
RELAY_ANSWERS_TTL_S = 3_600  # of the stream with the answers for a server, after its last use
RELAY_READ_BYTES = 1024 * 1024
WORKERS_MAX = 256  # server processes on a port
SERVER_RESTART_FIRST_S = 0.1  # after a server process of several has ended, until it is started again
SERVER_RESTART_MAX_S = 30.0  # the same, after it has ended often
SERVER_STEADY_S = 10.0  # how long a server process runs before its end counts as the first one again
SUPERVISOR_TICK_S = 0.05  # between two looks at the server processes
DRAIN_PAUSE_S = 0.5  # how long it keeps connections without a request, whose clients may be about to send one

ACTIVE_IDLE_S = 300.0  # an active view that is not requested for this long is dropped
ACTIVE_ATTEMPTS = 5  # to build an active view of a table whose rows are trimmed meanwhile
ACTIVE_BUILDS_AT_ONCE = 1  # active views built from their tables at the same time, because each needs memory
ACTIVE_KEY_BYTES = 192  # of memory for a live key, beside its row
ACTIVE_STEP_BYTES = 64 * 1024  # of rows applied to an active view in one step
ACTIVE_SNAPSHOT_BYTES_MIN = 4 * 1024 * 1024  # of rows applied since the last snapshot before another is written
ACTIVE_SNAPSHOT_RECORD_BYTES = 256 * 1024
ACTIVE_SNAPSHOT_TTL_S = 30 * 86_400

# States of streams.
STATE_IDLE_S = 300.0  # a state that is not requested for this long is dropped
STATE_EAGER_S = 60.0  # how long after a request a state is kept current; later, the next request brings it up to date
STATE_OWN_BYTES = 4 * 1024  # of memory for a state, beside its entities
STATE_READ_BYTES = 256 * 1024  # of a stream, read in one step while its state is built
STATE_INLINE_BYTES = 32 * 1024  # of a stream, folded on the loop; more is folded in a thread
STATE_SHORT_BYTES = 1024 * 1024  # of a stream that lack in a state which does not wait for larger ones to be built
STATE_SHORT_BUILDS_AT_ONCE = 4
STATE_BUILDS_AT_ONCE = 1  # of larger states, and again of states at an offset, because each needs memory
STATES_PAST_WAITING_MAX = 32  # states at an offset that are built or wait for that
STATES_PAST_KEPT_MAX = 4  # states at an offset, kept for the next pages of them
STATE_EVICTED_SHARE = 1 / 8  # of the memory of all states that is freed when it is used up
STATE_TRIMMED_TRIES = 3  # of a request for a state whose stream is trimmed while it is read

# The edges.
RETRY_AFTER_S = 1.0  # Retry-After of a request that is refused temporarily
TURN_REQUESTS_MIN = 64  # requests accepted in one turn of the loop before any is refused as overload
TURN_PAUSE_S = 0.05  # between two requests of a turn: the machine did other work, since no request takes that long
OVERLOAD_RETRY_MAX_S = 3.0  # largest Retry-After under overload
REFUSED_PAUSE_S = 0.5  # pause of a connection after a request was refused temporarily
LIVE_RETRY_AFTER_S = 5.0  # Retry-After of a refused live read, because live reads take longer to end than requests
RATE_BURST_S = 1.0  # a rate limit allows bursts of this many seconds
RATE_KEYS_MAX = 65_536  # identities or addresses whose rates are counted
MEMORY_BYTES_MIN = 128 * 1024 * 1024  # smallest accepted memory limit
MEMORY_SHARE = 0.75  # of the memory of the machine or control group: the default of the memory limit
MEMORY_OWN_BYTES = 64 * 1024 * 1024  # memory of an idle server
MEMORY_LOOK_S = 0.05  # interval at which the memory in use is measured
MEMORY_RELIEF_S = 0.5  # minimum time between two attempts to free memory
SWITCH_INTERVAL_S = 0.0005  # how long the loop waits for a thread that runs Python code; Python's default is 5 ms
EDGE_TICK_S = 0.5  # interval at which the deadlines of all connections are checked
REQUESTS_PER_TURN = 64  # requests of one connection that are started before other connections get their turn
RECEIVE_BYTES = 64 * 1024  # read from one connection before other connections get their turn
HEADERS_MAX = 200  # of a request; many small headers take several times their bytes in memory
HEADER_MEMORY_BYTES = 160  # of memory for a header, beside its text
REQUEST_MEMORY_BYTES = 1_024  # of memory for a request, beside its headers and body
AHEAD_SHARE = 0.25  # part of `request_bytes_in_flight_max` for bytes of requests that are not authorized yet
PARSE_STEP_BYTES = 4 * 1024  # parsed at once, then the size of a head, chunk extensions or trailers is checked
HEADS_KNOWN_MAX = 256  # heads of requests that are recognized when the same bytes arrive again
HEADS_PASSED = 15  # of heads with known headers and another path that are not kept for each that replaces a known one
HEAD_KNOWN_BYTES_MAX = 2 * 1024  # of such a head
PARSE_PIECES_MAX = 64  # chunks and requests in a step; with more, other connections get their turn before the next step
CONNECTIONS_SPARED_MAX = 16  # connections accepted while there is no memory, so that health checks still work
CONNECTIONS_REFUSED_MAX = 32  # refused connections that get a response at the same time; more are closed at once
DESCRIPTORS_MAX = 1_048_576  # where the system sets no limit
DESCRIPTORS_RESERVED = 256  # for the store and everything else that is not a connection
LISTEN_BACKLOG_CONNECTIONS = 4_096
RESPONSE_JOIN_BYTES_MAX = 64 * 1024  # head and body are sent in one write if the body is not larger
WATCH_S = 1.0  # interval of checks whether a watched file has changed
CERTIFICATE_WARNING_S = 14 * 86_400  # time before a certificate expires from which the server warns

# Access: tokens, JWTs and signed URLs.
AUTH_FILE_BYTES_MAX = 16 * 1024 * 1024
AUTH_HEADER_LENGTH_MAX = 16 * 1024  # of credentials; longer ones are refused without being parsed
AUTH_CALLERS_CACHED_MAX = 4_096  # verified credentials
AUTH_DECISIONS_CACHED_MAX = 1_024  # per caller: decisions on an action and a path
AUTH_CHECK_S = 0.5  # interval at which the permissions of live readers are checked again
AUTH_SCOPES_MAX = 256  # of one token
QUOTA_MAX = 2**63 - 1  # of each number of a quota
GLOB_LENGTH_MAX = 1_100
RETENTION_RULES_MAX = 1_000  # defaults by path; the first that covers a path is searched when a stream is created
GLOB_STARS_MAX = 2  # `**` in a glob, and `*` in one of its segments; each makes matching slower
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

# Views.
VIEW_READ_BYTES = 256 * 1024  # of the source, read in one step while a view catches up
VIEW_INLINE_BYTES = 64 * 1024  # of the source, converted on the loop; more is converted in a thread
VIEW_BATCH_BYTES = 256 * 1024  # of one append of a view, unless one record is larger
VIEW_BATCH_RECORDS = 10_000
VIEW_UNRECORDED_BYTES = 4 * 1024 * 1024  # of the source without a row for the view, after which its position is saved
VIEWS_BEHIND_AT_ONCE = 2  # views that catch up at the same time
VIEW_LOOK_S = 1.0  # interval of checks whether a missing source exists again
VIEW_REASON_LENGTH_MAX = 200  # of the stored reason why a message was skipped

# The client for outbound requests of the server.
OUTBOUND_URL_BYTES_MAX = 2 * 1024
OUTBOUND_HEAD_BYTES_MAX = 16 * 1024  # headers of a response, including informational (1xx) responses before it
OUTBOUND_READ_BYTES = 16 * 1024  # parsed in one step
OUTBOUND_LOOKUPS_MAX = 16  # concurrent name lookups
OUTBOUND_ADDRESSES_TRIED_MAX = 4  # addresses of a name that are tried; all of them are checked
OUTBOUND_KEEP_ALIVE_S = 15.0  # how long an idle connection is kept for the next request
FREE_BYTES_KEPT = 64 * 1024 * 1024  # freed memory that the server does not return to the kernel
FREE_PIECE_BYTES_MAX = 16 * 1024 * 1024  # of it; larger pieces are returned at once
