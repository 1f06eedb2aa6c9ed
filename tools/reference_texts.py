"""What the reference says of routes, query parameters and headers: one sentence each, by the name that the code has.

`tests/unit/test_reference.py` compares the names with those in the code, in both directions.
"""

from __future__ import annotations

STREAM = "/v1/stream/{path}"
TABLE = "/v1/table/{path}"
NURL = "/v1/table/{path}/notify"
STREAM_CONTROL = "/v1/stream/__ds"
TABLE_CONTROL = "/v1/table/__stp"
SUBSCRIPTION = f"{STREAM_CONTROL}/subscriptions/{{id}}"

ROUTES = {
    "GET /": "Name, version and routes of the server.",
    "GET /healthz": "200 while the process is alive. See [Monitoring](../observing.md).",
    "HEAD /healthz": "The same, without a body.",
    "GET /readyz": "200 while the server accepts requests, else 503 with the reasons.",
    "HEAD /readyz": "The same, without a body.",
    "GET /metrics": "Metrics for Prometheus. See [Metrics](metrics.md).",
    "GET /console": "The [console](../console.md), a page to look at streams and tables.",
    "HEAD /console": "The same, without a body.",
    "GET /console/{path}": "Its scripts and its style sheet.",
    "HEAD /console/{path}": "The same, without a body.",
    f"GET {STREAM_CONTROL}/streams": "A page of the list of streams. See [List of streams](../protocol.md#extensions).",
    f"GET {STREAM_CONTROL}/splits": "Offsets at which a range of a stream can be cut into parts.",
    f"GET {STREAM_CONTROL}/records": "Offset and time of each record of a range.",
    f"GET {STREAM_CONTROL}/state": "One entity of a state stream, or a page of them, now or at an offset or a time. See [Entities by URL](../state.md#entities-by-url).",
    f"HEAD {STREAM_CONTROL}/state": "The headers of that response.",
    f"GET {STREAM_CONTROL}/details": "What a stream is: origin, forks, producers, retention, and what the token may do with it.",
    f"GET {STREAM_CONTROL}/forks": "A page of the forks of a stream.",
    f"GET {STREAM_CONTROL}/caller": "Name, scopes and expiry of the token of the request.",
    f"GET {STREAM_CONTROL}/live": "Follow many streams over one connection. See [Many streams over one connection](../protocol.md#many-streams-over-one-connection).",
    f"POST {STREAM_CONTROL}/live": "The same with the parameters as a form in the body, for lists that are too long for a URL.",
    f"GET {STREAM_CONTROL}/top": "Load of the server, its busiest or largest streams, and what is behind.",
    f"GET {STREAM_CONTROL}/usage": "What the path prefixes and tokens with quotas hold, and their quotas, as JSON. See [Operations](../operations.md#limits-and-overload).",
    f"GET {STREAM_CONTROL}/settings": "The options and limits of the server with the source of each, without passwords. See [Operations](../operations.md#settings-over-http).",
    f"POST {STREAM_CONTROL}/trim": "Remove what comes before an offset or a time. See [Retention](../retention.md#trims).",
    f"POST {STREAM_CONTROL}/compact": "Replace the front of a state stream by a snapshot, and answer when that is done. See [Compaction](../retention.md#compaction).",
    f"POST {STREAM_CONTROL}/sign": "A signed URL of a stream or table. See [Signed URLs](../security.md#signed-urls).",
    f"GET {STREAM_CONTROL}/jwks.json": "The public keys that verify webhooks, as a JWK Set. See [Subscriptions](../subscriptions.md#webhooks).",
    f"POST {STREAM_CONTROL}/rotate-key": "Sign webhooks with a new key. The old one stays published for a day.",
    f"GET {STREAM_CONTROL}/subscriptions": "A page of the list of subscriptions, with lag, leases and failures.",
    f"PUT {SUBSCRIPTION}": "Create a subscription, or confirm that it exists with this configuration. See [Subscriptions](../subscriptions.md).",
    f"GET {SUBSCRIPTION}": "The configuration of a subscription, its streams and their acked offsets.",
    f"DELETE {SUBSCRIPTION}": "Delete a subscription.",
    f"POST {SUBSCRIPTION}/streams": "Link streams by name, at their tails.",
    f"DELETE {SUBSCRIPTION}/streams/{{path}}": "Remove a link by name.",
    f"POST {SUBSCRIPTION}/callback": "The callback of a webhook: ack offsets, extend the lease, end the wake. With the token of the wake.",
    f"POST {SUBSCRIPTION}/claim": "Claim a subscription as a worker.",
    f"POST {SUBSCRIPTION}/ack": "Ack offsets, extend the lease, end the wake. With the token of the claim.",
    f"POST {SUBSCRIPTION}/release": "End the wake without acks. With the token of the claim.",
    f"PUT {STREAM}": "Create a stream, a fork or a view. A body is its first append.",
    f"POST {STREAM}": "Append to a stream, close it, or both.",
    f"GET {STREAM}": "Read a stream from an offset; follow it with `live`.",
    f"HEAD {STREAM}": "Content type, tail offset, closure and expiry of a stream.",
    f"PATCH {STREAM}": "Change what is kept of a stream. See [Retention](../retention.md).",
    f"DELETE {STREAM}": "Delete a stream. Its forks keep what they inherited.",
    f"GET {TABLE_CONTROL}/tables": "A page of the list of tables.",
    f"GET {TABLE_CONTROL}/details": "What a table is, beside its rows: live readers, producers, and what the token may do.",
    f"GET {TABLE_CONTROL}/followers": "The remote tables that this server follows, and the state of each follower.",
    f"GET {TABLE_CONTROL}/views": "The views of this server and the state of each.",
    f"GET {TABLE_CONTROL}/nurls": "The NURLs of a table, how far behind each is, and what came of the last POST to it.",
    f"PUT {TABLE}": "Create a table, a fork, a mirror or a view. A body is its first rows.",
    f"POST {TABLE}": "Append changes to a table, or rows to a mirror; close it.",
    f"GET {TABLE}": "Read the rows of a table and follow it.",
    f"HEAD {TABLE}": "Schema, version, last SeqNo, closure and expiry of a table.",
    f"POST {TABLE}/trim": "Remove the rows before a SeqNo or a time.",
    f"POST {TABLE}/compact": "Remove rows that later ones have replaced, and answer when that is done. See [Compaction](../retention.md#compaction).",
    f"PATCH {TABLE}": "Change what is kept of a table.",
    f"DELETE {TABLE}": "Delete a table and its rows.",
    f"POST {NURL}": "Notify: report that a SURL may have new rows, or advertise NURLs. See [Notify](../stp.md#notify).",
    f"GET {NURL}": "The NURLs that are advertised for a table, as a table.",
    f"HEAD {NURL}": "The headers of that table.",
    f"DELETE {NURL}": "Withdraw a NURL.",
}

_READ_TABLE = {
    "since_id": "Rows with a larger SeqNo; if negative, that many of the last rows. 0 by default: all rows.",
    "until_id": "No rows with a larger SeqNo. The response ends there.",
    "timeout": "Seconds that the response stays open in all. 30 by default, 300 at most. 0 returns the existing rows at once.",
    "idle": "The response ends after this many seconds without a row. 10 by default, 300 at most.",
    "view": "`all` (default): every row. `active`: the last row of each key that is not deleted.",
    "key": "The last row of this key, if it is not deleted. Implies `view=active`.",
    "live": "`sse`: rows as server-sent events. `false` by default.",
}
_LIST = {
    "prefix": "Only paths that begin with this.",
    "after": "Only paths after this one: `next_after` of the page before.",
    "limit": "Entries in the response, 1 to 1,000. 100 by default.",
}
_RANGE = {
    "path": "The path of the stream.",
    "offset": "Where the range begins. The beginning of the stream by default.",
    "until": "Where the range ends. The tail by default.",
}

_LIVE = {
    "stream": "`PATH@OFFSET`, once for each stream: its path, percent-encoded, and where to begin, as `offset` of a read. The last `@` separates. `PATH` alone is the beginning.",
    "subscription": "Instead: the id of a subscription, whose streams are followed.",
    "ids": "`false`: events have no `id`. A client that keeps the offset of each stream does not need it.",
}

_STATE = {
    "path": "The path of the stream.",
    "type": "The type of the entity. Without it, entities of all types.",
    "key": "The key of the entity. Without it, the response is a page of entities, sorted by type and key.",
    "at": "The state at an offset of the stream, or before a moment (RFC 3339). The newest state by default.",
    "limit": "Entities of a page, 1 to 10,000. 100 by default. A page of more than 1 MiB is shorter.",
    "after": "`next` of the last page.",
}

PARAMETERS = {
    f"GET {STREAM}": {
        "offset": "Where to begin: an offset that the server gave, `-1` (default) for the beginning, `now` for the tail.",
        "live": "`false` (default): return the existing data. `long-poll`: wait for data. `sse`: server-sent events.",
        "cursor": "`Stream-Cursor` of the last response. Distinguishes successive long-polls in caches.",
        "until": "Nothing at or past this offset is returned.",
    },
    f"GET {STREAM_CONTROL}/streams": _LIST,
    f"GET {STREAM_CONTROL}/splits": {
        **_RANGE,
        "parts": "Cut into this many parts of about equal size, 1 to 10,000. Either this or `bytes`.",
        "bytes": "Cut into parts of at most this size, unless one record is larger.",
        "limit": "Cuts in the response, at most 10,000.",
    },
    f"GET {STREAM_CONTROL}/records": {
        **_RANGE,
        "at": "Begin with the first record that was appended at or after this moment (RFC 3339). Not with `offset`.",
        "limit": "Records in the response, 1 to 10,000. 1,000 by default.",
        "compact": "`true`: two columns of numbers, `ends` and `times_ms`, instead of a list of records.",
    },
    f"GET {STREAM_CONTROL}/state": _STATE,
    f"HEAD {STREAM_CONTROL}/state": _STATE,
    f"GET {STREAM_CONTROL}/details": {"path": "The path of the stream."},
    f"GET {STREAM_CONTROL}/forks": {
        "path": "The path of the stream.",
        "after": "Only forks after this path: `next_after` of the page before.",
    },
    f"GET {STREAM_CONTROL}/live": _LIVE,
    f"POST {STREAM_CONTROL}/live": _LIVE,
    f"GET {STREAM_CONTROL}/top": {
        "by": "Order of the streams: `rate` (default) or `size`.",
        "limit": "Streams in the response, 1 to 100. 20 by default.",
    },
    f"GET {STREAM_CONTROL}/subscriptions": {
        "prefix": "Only ids that begin with this.",
        "after": "Only ids after this one: `next_after` of the page before.",
        "limit": "Subscriptions in the response, 1 to 1,000. 100 by default.",
    },
    f"GET {SUBSCRIPTION}": {
        "after": "Only streams after this path: `streams_next_after` of the page before.",
        "limit": "Streams in the response, 1 to 1,000, which is the default.",
    },
    f"POST {STREAM_CONTROL}/sign": {
        "url": "The URL path of the stream or table.",
        "expires": "Seconds that the signature is valid: 3,600 by default, 604,800 (seven days) at most.",
        "action": "`read` (default) or `append`: what the URL is for.",
    },
    f"POST {STREAM_CONTROL}/trim": {
        "path": "The path of the stream.",
        "before": "What comes before it is removed: an offset, a moment (RFC 3339), or `now` for the tail.",
    },
    f"POST {STREAM_CONTROL}/compact": {"path": "The path of the stream."},
    f"GET {TABLE_CONTROL}/tables": _LIST,
    f"GET {TABLE_CONTROL}/nurls": {"name": "The name of the table."},
    f"GET {TABLE_CONTROL}/details": {"name": "The name of the table."},
    f"GET {TABLE}": _READ_TABLE,
    f"GET {NURL}": _READ_TABLE,
    f"DELETE {NURL}": {"nurl": "The NURL to withdraw, under all its event types."},
    f"POST {TABLE}/trim": {
        "before": "The rows before it are removed: a SeqNo, a moment (RFC 3339), or `now` for all rows.",
    },
}
SIGNED = (
    "A signature made by `sign` or `headwater token sign`. Valid with `GET` and `HEAD` of its stream or table, or with "
    "`POST`, if it was made for appends."
)

BOTH, REQUEST, RESPONSE = "both", "request", "response"

# Of the protocols: as written, where it is sent, on what, meaning.
HEADERS = {
    "stream-next-offset": ("Stream-Next-Offset", RESPONSE, "The offset to read on from; after a write, the tail."),
    "stream-cursor": ("Stream-Cursor", RESPONSE, "To be sent back as `cursor` with the next live read."),
    "stream-up-to-date": ("Stream-Up-To-Date", RESPONSE, "`true`: the response reaches the tail."),
    "stream-closed": (
        "Stream-Closed",
        BOTH,
        "Of a write, `true`: close the stream or table after it. Of a response, `true`: nothing more will be appended.",
    ),
    "stream-ttl": ("Stream-TTL", BOTH, "Seconds to live after the last read or write. Set by `PUT`."),
    "stream-expires-at": ("Stream-Expires-At", BOTH, "Moment at which the stream expires (RFC 3339). Set by `PUT`."),
    "stream-retain-seconds": (
        "Stream-Retain-Seconds",
        BOTH,
        "Records that are older are trimmed. Set by `PUT` or `PATCH`; empty: no limit. See [Retention](../retention.md).",
    ),
    "stream-retain-bytes": (
        "Stream-Retain-Bytes",
        BOTH,
        "The newest records that fit are kept, at least the last one; the others are trimmed. Set by `PUT` or `PATCH`; empty: no limit.",
    ),
    "stream-retain-messages": (
        "Stream-Retain-Messages",
        BOTH,
        "At least the last so many messages, or rows, are kept; older records are trimmed. Set by `PUT` or `PATCH`; empty: no limit.",
    ),
    "stream-compact": (
        "Stream-Compact",
        BOTH,
        "`true`: the front of a stream of state events, or of a table, may be replaced by the state there. Set by `PUT` or `PATCH`.",
    ),
    "stream-compact-after": (
        "Stream-Compact-After",
        BOTH,
        "Only what is older, in seconds, is compacted. Set by `PUT` or `PATCH`; needs `Stream-Compact: true`.",
    ),
    "stream-first-offset": (
        "Stream-First-Offset",
        RESPONSE,
        "Where the stream begins: what was before it was trimmed. With `HEAD`, `PATCH` and with 410 (`offset-trimmed`).",
    ),
    "accept-post": (
        "Accept-Post",
        RESPONSE,
        "Of a `HEAD` of a stream: its content type and that of a [compose](../protocol.md#extensions), which the server accepts in a `POST`.",
    ),
    "stream-seq": (
        "Stream-Seq",
        REQUEST,
        "Of an append: text that must be greater than that of the last append, else 409. Guards against a second writer.",
    ),
    "stream-forked-from": ("Stream-Forked-From", REQUEST, "Of a `PUT`: the URL path of the stream or table to fork."),
    "stream-fork-offset": ("Stream-Fork-Offset", REQUEST, "Where the fork leaves its source. The tail by default."),
    "stream-fork-sub-offset": (
        "Stream-Fork-Sub-Offset",
        REQUEST,
        "Messages (bytes, for streams that are not JSON) of the record at the fork offset that the fork has too.",
    ),
    "stream-view-of": (
        "Stream-View-Of",
        REQUEST,
        "Of a `PUT`: the URL path of the table that the stream is a view of.",
    ),
    "stream-view-type": ("Stream-View-Type", REQUEST, "The entity type of the view's events, percent-encoded."),
    "stream-view-record": (
        "Stream-View-Record",
        REQUEST,
        "How a record of the table becomes a value: `json` (default) or `text`.",
    ),
    "stream-sse-data-encoding": (
        "Stream-SSE-Data-Encoding",
        RESPONSE,
        "`base64`: the data of the events is base64, because the stream is neither text nor JSON.",
    ),
    "producer-id": ("Producer-Id", REQUEST, "Name of an idempotent producer. The three headers are sent together."),
    "producer-epoch": (
        "Producer-Epoch",
        BOTH,
        "Number of the producer's session. A higher one fences off lower ones. Of a 403: the epoch in force.",
    ),
    "producer-seq": (
        "Producer-Seq",
        BOTH,
        "Number of the request, from 0 in each epoch. Of a response: the last accepted.",
    ),
    "producer-expected-seq": ("Producer-Expected-Seq", RESPONSE, "Of a 409 for a gap: the number that comes next."),
    "producer-received-seq": ("Producer-Received-Seq", RESPONSE, "Of a 409 for a gap: the number that was sent."),
    "if-match": (
        "If-Match",
        REQUEST,
        "Of an append, a close or a `DELETE`: only if the stream ends at this offset, or the table with this SeqNo.",
    ),
    "stp-last-seqno": ("STP-Last-SeqNo", RESPONSE, "SeqNo of the table's last row; 0 if it has none."),
    "stp-first-seqno": (
        "STP-First-SeqNo",
        RESPONSE,
        "The first SeqNo that is there: rows before it were trimmed; 1 if none were. Also with 410 (`offset-trimmed`).",
    ),
    "stp-gapless": ("STP-Gapless", RESPONSE, "`true`: SeqNos count 1, 2, 3, so a missing row can be noticed."),
    "stp-notify": ("STP-Notify", RESPONSE, "The table's NURL, relative to its SURL."),
    "stp-mirror": ("STP-Mirror", BOTH, "`true`: the table is a mirror, whose rows another server numbered."),
    "stp-fork-seqno": ("STP-Fork-SeqNo", REQUEST, "Of a fork: the last row that it inherits. All rows by default."),
    "stp-after-seqno": (
        "STP-After-SeqNo",
        REQUEST,
        "Of rows for a mirror: the SeqNo in the source that they come after; 0 for the first row.",
    ),
    "stp-view-of": ("STP-View-Of", REQUEST, "Of a `PUT`: the URL path of the stream that the table is a view of."),
    "stp-view-type": ("STP-View-Type", REQUEST, "The type of the view's entities, percent-encoded."),
}

# Of HTTP, and what the server does with them.
HTTP_HEADERS = {
    "accept": (
        "Accept",
        REQUEST,
        "Of a read of a table: another schema or version gets 406. Of `/metrics`: the format.",
    ),
    "accept-encoding": (
        "Accept-Encoding",
        BOTH,
        "Encodings of a response: zstd, br, gzip, deflate. Of a 415: `identity`.",
    ),
    "access-control-allow-headers": (
        "Access-Control-Allow-Headers",
        RESPONSE,
        "Of a preflight: the request headers above.",
    ),
    "access-control-allow-methods": ("Access-Control-Allow-Methods", RESPONSE, "Of a preflight: the methods."),
    "access-control-allow-origin": ("Access-Control-Allow-Origin", RESPONSE, "The origin of an allowed page."),
    "access-control-allow-private-network": (
        "Access-Control-Allow-Private-Network",
        RESPONSE,
        "Of a preflight that asks for it: allowed pages may use a server in a private network.",
    ),
    "access-control-expose-headers": (
        "Access-Control-Expose-Headers",
        RESPONSE,
        "The response headers a page may see.",
    ),
    "access-control-max-age": ("Access-Control-Max-Age", RESPONSE, "A preflight is valid for a day."),
    "access-control-request-private-network": ("Access-Control-Request-Private-Network", REQUEST, "See above."),
    "allow": ("Allow", RESPONSE, "Of a 405: the methods of the route."),
    "authorization": ("Authorization", REQUEST, "`Bearer` and a token. See [Security](../security.md)."),
    "cache-control": (
        "Cache-Control",
        RESPONSE,
        "How long a response may be kept. See [Implementation choices](../protocol.md#implementation-choices).",
    ),
    "connection": ("Connection", RESPONSE, "`close`: the server closes the connection after the response."),
    "content-encoding": (
        "Content-Encoding",
        BOTH,
        "Of a response: how it is compressed. Of a request: only `identity`, else 415.",
    ),
    "content-length": ("Content-Length", BOTH, "Size of the body. A larger one than `body_bytes_max` gets 413."),
    "content-security-policy": (
        "Content-Security-Policy",
        RESPONSE,
        "Stored content runs no scripts in a browser; the console runs its own only.",
    ),
    "content-type": ("Content-Type", BOTH, "Type of the stream or table; sent with every body."),
    "cross-origin-opener-policy": (
        "Cross-Origin-Opener-Policy",
        RESPONSE,
        "`same-origin`: other pages cannot reach the window of the console.",
    ),
    "cross-origin-resource-policy": ("Cross-Origin-Resource-Policy", RESPONSE, "Which pages may embed a response."),
    "etag": ("ETag", RESPONSE, "Tag of a response, for `If-None-Match`; of a `HEAD`, for `If-Match` too."),
    "forwarded": ("Forwarded", REQUEST, "Address, scheme and host of the client, if a trusted proxy sends it."),
    "host": (
        "Host",
        REQUEST,
        "Must be a name that the server accepts, else 421. See [Browsers](../operations.md#browsers).",
    ),
    "if-none-match": ("If-None-Match", REQUEST, "Of a read: 304 if the response has not changed."),
    "last-event-id": (
        "Last-Event-ID",
        REQUEST,
        "Sent by an `EventSource` that reconnects; replaces `offset` or `since_id`.",
    ),
    "location": ("Location", RESPONSE, "Of a 201: the URL of the stream or table."),
    "origin": ("Origin", REQUEST, "The origin of a page. A write from an origin that is not allowed gets 403."),
    "permissions-policy": ("Permissions-Policy", RESPONSE, "The console uses no camera, microphone and location."),
    "referrer-policy": ("Referrer-Policy", RESPONSE, "`no-referrer`, so that pages do not pass on signed URLs."),
    "retry-after": ("Retry-After", RESPONSE, "Of a 429, 503 or 507: seconds to wait before the next attempt."),
    "traceparent": ("traceparent", REQUEST, "W3C Trace Context. Passed on to requests that follow from this one."),
    "transfer-encoding": (
        "Transfer-Encoding",
        REQUEST,
        "Only `chunked`, else 501; of HTTP/1.0 none, else 400.",
    ),
    "user-agent": ("User-Agent", REQUEST, "Written to the access log."),
    "vary": ("Vary", RESPONSE, "The request headers that the response depends on."),
    "www-authenticate": ("WWW-Authenticate", RESPONSE, "Of a 401 or 403: `Bearer`, and what is missing."),
    "x-accel-buffering": (
        "X-Accel-Buffering",
        RESPONSE,
        "`no` on live responses, so that nginx passes data on at once.",
    ),
    "x-content-type-options": ("X-Content-Type-Options", RESPONSE, "`nosniff`."),
    "x-forwarded-for": ("X-Forwarded-For", REQUEST, "As `Forwarded`, from a trusted proxy."),
    "x-forwarded-host": ("X-Forwarded-Host", REQUEST, "As `Forwarded`, from a trusted proxy."),
    "x-forwarded-proto": ("X-Forwarded-Proto", REQUEST, "As `Forwarded`, from a trusted proxy."),
    "x-frame-options": ("X-Frame-Options", RESPONSE, "`DENY`: no page can frame the console."),
    "x-request-id": ("X-Request-Id", BOTH, "Id of the request, also in problem documents and logs."),
}
