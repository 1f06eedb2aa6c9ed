"""The limits that a deployment can set."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

__all__ = ["LimitRange", "Limits", "bounds_of", "check_together", "parse_limits", "set_limits"]


_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
_HOUR_S, _DAY_S = 3_600, 86_400


def _is(text: str, least: float | None = None, most: float | None = None) -> Meta:
    """The description of a limit and its bounds. Bounds that are left out follow from the unit (`_bounds_of_unit`)."""
    return Meta(description=text, extra={"least": least, "most": most})


def _bounds_of_unit(name: str) -> tuple[float, float]:
    """The bounds of limits that are seconds, bytes and counts."""
    if re.search(r"_s(_max|_min)?$", name) and "_per_s" not in name:
        return 0.01, _DAY_S
    return (1, 1024 * _GIB) if "bytes" in name else (1, 1_000_000_000)


class LimitRange(NamedTuple):
    """The least and the greatest value of a limit. A limit whose default is 0 may be 0 as well."""

    least: float
    most: float
    may_be_off: bool

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and (self.least <= value <= self.most or (self.may_be_off and value == 0))

    def __str__(self) -> str:
        return f"{'0 (no limit) or ' if self.may_be_off else ''}from {self.least:,} to {self.most:,}"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a deployment can set; the defaults suit one server on a small machine.

    `python -m tools.reference` copies these descriptions into the documentation. A limit whose default is 0 is off by
    default, and 0 turns it off. The bounds keep values out with which the server could not work; they are beside each
    limit, or those of its unit.
    """

    streams_max: Annotated[int, _is("number of streams and tables; a create beyond it gets 403; 0: no limit")] = 0
    stream_bytes_max: Annotated[
        int,
        _is("size of a stream or table, without inherited data of a fork; an append beyond it gets 413; 0: no limit"),
    ] = 0
    producers_per_stream_max: Annotated[
        int,
        _is(
            "producers of a stream or table that made a request in the last 30 days; an append of a new one beyond it "
            "gets 413. Each takes about 300 bytes of memory while its stream is in use"
        ),
    ] = 10_000
    requests_per_s_per_identity: Annotated[
        int,
        _is(
            "requests per second of a token, of an address if there is no token, or of a signed URL and an address "
            "(429); 0: no limit"
        ),
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
    combined_streams_max: Annotated[
        int, _is("streams that one connection follows (400); each is a live read of its own", 1, 2_000)
    ] = 500
    memory_bytes_max: Annotated[
        int,
        _is(
            "resident memory; above 90 % of it, writes get 503 and reads continue; 0: three quarters of the memory of "
            "the machine or its control group, and for the ASGI app no limit"
        ),
    ] = 0
    connections_per_address_max: Annotated[
        int,
        _is("open connections of an address (429), except trusted proxies; native edge only; 0: no limit"),
    ] = 0
    request_wait_s_max: Annotated[
        float,
        _is("how long a request waits for its turn under overload before it gets 503; native edge only", 0.001, 60),
    ] = 0.2
    body_bytes_max: Annotated[int, _is("size of a request body (413)", _KIB, _GIB)] = 16 * 1024 * 1024
    messages_per_append_max: Annotated[int, _is("messages in one JSON body (413)")] = 1_000_000
    header_bytes_max: Annotated[
        int, _is("size of the headers of a request, of which there are 200 at most (431)", _KIB, _MIB)
    ] = 32 * 1024
    url_bytes_max: Annotated[int, _is("length of the URL of a request (414)", 256, _MIB)] = 8 * 1024
    read_chunk_bytes: Annotated[int, _is("size of one response to a catch-up read", 256, 64 * _MIB)] = 2 * 1024 * 1024
    sse_chunk_bytes: Annotated[int, _is("size of an event while a feed catches up", 256, 64 * _MIB)] = 256 * 1024
    connections_max: Annotated[
        int, _is("open connections (503); fewer if the system allows too few file descriptors", 1, 1_000_000)
    ] = 65_536
    pipeline_requests_max: Annotated[int, _is("pipelined requests that wait on a connection", 1, 10_000)] = 16
    pipeline_bytes_max: Annotated[int, _is("size of these requests", _KIB, _GIB)] = 1024 * 1024
    request_bytes_in_flight_max: Annotated[
        int,
        _is(
            "memory of the requests that are incomplete or waiting, over all connections (503); a quarter of it for "
            "requests that are not authorized yet",
            64 * _KIB,
        ),
    ] = 256 * 1024 * 1024
    response_bytes_in_flight_max: Annotated[
        int,
        _is(
            "size of the responses that clients have not read yet, over all connections; beyond it reads get 503",
            64 * _KIB,
        ),
    ] = 256 * 1024 * 1024
    large_read_bytes_max: Annotated[
        int,
        _is(
            "size of the large records that are being sent, each counted once; beyond it reads of them get 503",
            64 * _KIB,
        ),
    ] = 128 * 1024 * 1024
    write_buffer_bytes: Annotated[
        int, _is("unsent bytes of a connection above which the server stops writing to it", 4 * _KIB, 64 * _MIB)
    ] = 256 * 1024
    live_buffer_bytes: Annotated[int, _is("the same for a feed under an ASGI server", 4 * _KIB, 64 * _MIB)] = 256 * 1024
    long_poll_s: Annotated[float, _is("how long a long-poll waits")] = 30.0
    sse_lifetime_s: Annotated[float, _is("how long a feed stays open; by chance down to half of it")] = 60.0
    sse_keep_alive_s: Annotated[float, _is("silence on a feed before a keep-alive comment is sent")] = 15.0
    idle_s: Annotated[float, _is("how long a connection without a request stays open")] = 75.0
    header_s: Annotated[float, _is("time from the first byte of a request to the end of its headers (408)")] = 10.0
    tls_handshake_s: Annotated[float, _is("time from a new connection to the end of its TLS handshake")] = 10.0
    body_stall_s: Annotated[float, _is("time between two pieces of a body (408)")] = 30.0
    body_bytes_per_s_min: Annotated[int, _is("minimum rate of a body over the last `body_stall_s` (408)", 1, _GIB)] = (
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
    expiry_sweep_s: Annotated[float, _is("interval of checks for expired streams", 0.01, _HOUR_S)] = 1.0
    expiry_grace_s: Annotated[
        float,
        _is("time after a start before the server deletes streams that expired while it was down", 0.01, 365 * _DAY_S),
    ] = 600.0
    commit_backlog_bytes: Annotated[int, _is("size of the accepted writes that wait for the disk (503)", 64 * _KIB)] = (
        64 * 1024 * 1024
    )
    read_bytes_per_s_while_writing: Annotated[
        int, _is("rate of all large reads together while there are appends", 64 * _KIB)
    ] = 256 * 1024 * 1024
    segment_bytes: Annotated[int, _is("size of a journal segment", 64 * _KIB, _GIB)] = 32 * 1024 * 1024
    unfolded_segments_max: Annotated[int, _is("unfolded segments above which writers wait for the fold", 1, 1_000)] = 6
    fold_idle_s: Annotated[float, _is("time without writes after which the journal is folded")] = 2.0
    disk_reserve_bytes: Annotated[
        int, _is("disk space kept for deletions and the fold when the disk is full", 64 * _KIB, 64 * _GIB)
    ] = 64 * 1024 * 1024
    lease_s: Annotated[
        float, _is("how long the lease of `--lease` lasts; the server renews it three times in this time", 1, _HOUR_S)
    ] = 15.0
    streams_loaded_max: Annotated[int, _is("streams whose state is kept in memory", 10)] = 100_000
    documents_loaded_max: Annotated[int, _is("documents kept in memory", 10)] = 10_000
    active_keys_max: Annotated[int, _is("live keys of an active view (409)")] = 1_000_000
    active_bytes_max: Annotated[
        int,
        _is(
            "memory of the active views of all tables; the least recently used ones are evicted. Views are built one "
            "after the other",
            64 * _KIB,
        ),
    ] = 256 * 1024 * 1024
    state_bytes_max: Annotated[
        int,
        _is(
            "memory of the states of streams that are kept for requests by entity; the least recently used ones are "
            "evicted. One state may take half of it (409)",
            64 * _KIB,
        ),
    ] = 512 * 1024 * 1024
    compact_after_s: Annotated[
        int,
        _is("age from which on records are replaced by a snapshot, if the stream does not say it", 10, 365 * _DAY_S),
    ] = 3_600
    compact_bytes_min: Annotated[
        int, _is("bytes that must have been appended since the last snapshot of a stream before the next one", _KIB)
    ] = 1024 * 1024
    compact_bytes_per_s: Annotated[
        int, _is("rate at which compaction reads a stream and writes its snapshot", 64 * _KIB)
    ] = 32 * 1024 * 1024
    compact_memory_bytes: Annotated[
        int,
        _is(
            "memory for the content of a snapshot while it is computed; more of it is in a temporary file",
            _MIB,
            64 * _GIB,
        ),
    ] = 64 * 1024 * 1024
    compact_deletions_s: Annotated[
        float,
        _is(
            "how long a compacted table has deletions; a follower that was away for longer gets 410", 60, 3_660 * _DAY_S
        ),
    ] = 86_400.0
    compress_inline_bytes: Annotated[int, _is("larger bodies are compressed in a thread")] = 16 * 1024
    views_max: Annotated[int, _is("number of views (409)")] = 1_000
    nurls_per_table_max: Annotated[int, _is("number of NURLs of a table (409)")] = 100
    subscriptions_max: Annotated[int, _is("subscriptions of the server; a create beyond it gets 409")] = 100_000
    subscriptions_per_identity_max: Annotated[
        int, _is("subscriptions that one token has created (409); 0: no limit")
    ] = 0
    subscription_members_max: Annotated[
        int,
        _is("streams that a subscription may name, and streams with data that match its pattern when it is created"),
    ] = 100_000
    wakes_per_s_per_identity: Annotated[
        int, _is("wakes per second of the subscriptions of one token; further ones wait; 0: no limit")
    ] = 0
    webhook_posts_max: Annotated[
        int, _is("webhooks that are sent at the same time, of which one token gets half", 1, 10_000)
    ] = 256
    webhook_key_s: Annotated[
        float, _is("age at which the key that signs webhooks is replaced", 60, 10 * 366 * _DAY_S)
    ] = 90 * _DAY_S
    nurls_max: Annotated[int, _is("number of NURLs of all tables (409)")] = 10_000
    notify_posts_max: Annotated[int, _is("concurrent POSTs to NURLs", 1, 10_000)] = 64
    notify_retry_s: Annotated[float, _is("wait after the first failure of a NURL; doubles with each further one")] = 1.0
    notify_retry_max_s: Annotated[float, _is("longest wait between two attempts")] = 3_600.0
    notify_give_up_s: Annotated[float, _is("how long a NURL may fail before it is dropped", 0.01, 365 * _DAY_S)] = (
        86_400.0
    )
    outbound_connections_max: Annotated[int, _is("outbound connections, to URLs that clients gave", 1, 100_000)] = 256
    outbound_connections_per_host_max: Annotated[int, _is("the same to one host", 1, 10_000)] = 32
    outbound_connect_s: Annotated[
        float, _is("timeout for name lookup and connection, and again for the TLS handshake")
    ] = 10.0
    outbound_request_s: Annotated[
        float, _is("timeout of an outbound request; if the response is streamed, until its headers have arrived")
    ] = 30.0
    outbound_idle_s: Annotated[float, _is("silence after which a streamed outbound response counts as dead")] = 60.0
    outbound_body_bytes_max: Annotated[int, _is("size of an outbound response, unless it is streamed", _KIB, _GIB)] = (
        1024 * 1024
    )


def parse_limits(settings: Iterable[str]) -> Limits:
    """Return the default limits, changed by settings of the form `name=value`."""
    return set_limits({name: value for name, _, value in (setting.partition("=") for setting in settings)})


def set_limits(values: Mapping[str, object]) -> Limits:
    """Return the default limits, changed by these values. Raises ValueError for an unknown name or invalid value."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Limits)}
    numbers: dict[str, int | float] = {}
    for name, value in values.items():
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1)
            instead = f"did you mean {close[0]}?" if close else "headwater serve --print-config lists them"
            raise ValueError(f"no limit is called {name!r}; {instead}")
        kind = type(defaults[name])
        try:
            numbers[name] = kind(str(value))
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise ValueError(f"{name} must be {number}, got {value!r}") from None
        if numbers[name] not in (bounds := bounds_of(name)):
            raise ValueError(f"{name} must be {bounds}, got {value!r}")
    return msgspec.structs.replace(Limits(), **numbers)


def bounds_of(name: str) -> LimitRange:
    field = next(field for field in msgspec.structs.fields(Limits) if field.name == name)
    (about,) = field.type.__metadata__
    least, most = _bounds_of_unit(name)
    extra = about.extra
    return LimitRange(
        least if extra["least"] is None else extra["least"],
        most if extra["most"] is None else extra["most"],
        may_be_off=not field.default,
    )


_NOT_ABOVE = (  # what the first limit allows, the second would refuse for ever
    ("body_bytes_max", "request_bytes_in_flight_max"),
    ("notify_retry_s", "notify_retry_max_s"),
)


def check_together(limits: Limits) -> None:
    """Raise ValueError for limits that contradict each other."""
    for name, other in _NOT_ABOVE:
        value, most = getattr(limits, name), getattr(limits, other)
        if value > most:
            raise ValueError(f"{name} ({value:,}) is more than {other} ({most:,}); lower it, or raise {other}")
