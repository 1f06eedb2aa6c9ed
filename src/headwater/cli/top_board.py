"""The display of `headwater top`, computed from two responses of a server. Rates are differences of their totals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec
from rich.cells import cell_len, set_cell_size

from headwater.cli.output import shown
from headwater.cli.retaining import retention_text
from headwater.log.retention import Retention

_WIDTH_MIN = 40
_NUMBER = 11  # columns of a number
_BEHIND_MAX = 5  # views and followers, and subscriptions


class BoardCounts(msgspec.Struct, frozen=True):
    """A histogram of seconds."""

    bounds: list[float] = []
    counts: list[int] = []


class Commits(msgspec.Struct, frozen=True):
    records: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: BoardCounts = BoardCounts()
    fsync_seconds: BoardCounts | None = None
    backlog_records: int = 0


class Busy(msgspec.Struct, frozen=True):
    kind: str
    name: str
    bytes: int
    bytes_per_s: float
    appends_per_s: float
    readers: int
    trimmed_bytes: int = 0
    retention: Retention | None = None


class Behind(msgspec.Struct, frozen=True):
    """A view or a follower."""

    name: str
    state: str
    lag_bytes: int | None = None
    lag_rows: int | None = None


class Woken(msgspec.Struct, frozen=True):
    """A subscription with pending streams, and who has it for how long."""

    name: str
    state: str
    pending: int = 0
    lag_bytes: int | None = None
    holder: str | None = None
    lease_ms: int | None = None


class Look(msgspec.Struct, frozen=True):
    """A response of the server."""

    at_ms: int
    version: str = ""
    instance: str = ""
    role: bool | None = (
        None  # whether the server does the work in the background; None: it shares the store with nobody
    )
    worker: int = 0  # the number of the process that answered, if it is one of several
    memory_bytes: int = 0
    requests: dict[str, int] = {}  # by the class of their status
    sent_bytes: int = 0
    connections: int | None = None
    readers: dict[str, int] = {}  # by kind
    commits: Commits = Commits()
    unfolded_bytes: int = 0
    full: str | None = None
    refusing: str | None = None
    streams_loaded: int = 0
    streams: list[Busy] = []
    views: list[Behind] = []
    followers: list[Behind] = []
    subscriptions: list[Woken] = []


def lines(url: str, before: Look | None, now: Look, width: int, height: int) -> list[str]:
    """Render the board in this size: totals, then what has a lag, then as many streams as fit."""
    width = max(width, _WIDTH_MIN)
    board = [*_totals(url, before, now), *_behind(now, width), *_subscriptions(now, width)]
    board += ["", *_streams(now, width)]
    return [set_cell_size(shown(line), width).rstrip() for line in board[: max(height, 8)]]


def _totals(url: str, before: Look | None, now: Look) -> Iterator[str]:
    rates, commits = _Rates(before, now), now.commits
    was = Commits() if before is None or rates.over_s <= 0 else before.commits
    which = f", process {now.worker} of several" if now.worker else ""
    if now.role is not None:
        which += ", which works in the background" if now.role else ", while another one works in the background"
    yield f"Headwater {now.version} at {url}{which}"
    requests = sum(now.requests.values()), 0 if before is None else sum(before.requests.values())
    failed = "  ".join(
        f"{kind} {rates.of(now.requests.get(kind, 0), 0 if before is None else before.requests.get(kind, 0))}/s"
        for kind in ("4xx", "5xx")
    )
    sent = rates.of(now.sent_bytes, 0 if before is None else before.sent_bytes, size)
    yield f"requests  {rates.of(*requests)}/s  {failed}  sent {sent}/s"
    appended = rates.of(commits.bytes, was.bytes, size)
    batches = commits.batches - was.batches
    batch = f"{(commits.records - was.records) / batches:.1f}" if batches > 0 else "-"
    yield f"appends   {rates.of(commits.records, was.records)}/s  {appended}/s  {batch} in a batch"
    fsync = "" if commits.fsync_seconds is None else f"  fsync {_quantiles(was.fsync_seconds, commits.fsync_seconds)}"
    yield f"commit    {_quantiles(was.seconds, commits.seconds)}{fsync}"
    connections = "" if now.connections is None else f"connections {number(now.connections)}  "
    kinds = "  ".join(f"{kind} {number(count)}" for kind, count in now.readers.items() if count)
    yield f"readers   {connections}{kinds or 'no live readers'}"
    yield (
        f"memory    {size(now.memory_bytes)}  {number(now.streams_loaded)} streams  "
        f"unfolded {size(now.unfolded_bytes)}  backlog {number(commits.backlog_records)}"
    )
    for trouble in (now.refusing, now.full):
        if trouble is not None:
            yield f"! {trouble}"


class _Rates:
    def __init__(self, before: Look | None, now: Look) -> None:
        is_same = before is not None and before.instance == now.instance
        self.over_s = (now.at_ms - before.at_ms) / 1000 if before is not None and is_same else 0.0

    def of(self, now: float, before: float, shape: object = None) -> str:
        """A rate per second. It is unknown for the first sample, and if another process has answered than before."""
        if self.over_s <= 0 or now < before:
            return "-"
        rate = (now - before) / self.over_s
        return size(rate) if shape is size else number(rate)


def _quantiles(before: BoardCounts | None, now: BoardCounts) -> str:
    """The median and the 99th percentile between two samples, as upper bounds."""
    was = before.counts if before is not None and len(before.counts) == len(now.counts) else [0] * len(now.counts)
    counts = [new - old for new, old in zip(now.counts, was, strict=True)]
    if min(counts, default=0) < 0:  # the server was restarted
        counts = now.counts
    total = sum(counts)
    if not total:
        return "p50 -  p99 -"
    sums = list(itertools.accumulate(counts))
    bounds = []
    for part in (0.5, 0.99):
        place = next(index for index, sum_ in enumerate(sums) if sum_ >= part * total)
        bounds.append(f"{now.bounds[place] * 1000:g} ms" if place < len(now.bounds) else "more")
    return f"p50 {bounds[0]}  p99 {bounds[1]}"


def _behind(now: Look, width: int) -> Iterator[str]:
    lagging = [(one.lag_bytes, "bytes", f"view {one.name}", one.state) for one in now.views]
    lagging += [(one.lag_rows, "rows", f"follower {one.name}", one.state) for one in now.followers]
    lagging.sort(key=lambda one: one[0] or 0, reverse=True)
    if lagging:
        yield ""
        yield _row("BEHIND", ("STATE", "LAG"), width)
    for lag, unit, name, state in lagging[:_BEHIND_MAX]:
        yield _row(name, (state[:_NUMBER], "?" if lag is None else f"{number(lag)} {unit}"), width)


def _subscriptions(now: Look, width: int) -> Iterator[str]:
    if now.subscriptions:
        yield ""
        yield _row("SUBSCRIPTION", ("STATE", "PENDING", "LAG", "LEASE"), width)
    for one in now.subscriptions[:_BEHIND_MAX]:
        name = one.name if one.holder is None else f"{one.name} of {one.holder}"
        lag = "?" if one.lag_bytes is None else size(one.lag_bytes)
        lease = "-" if one.lease_ms is None else f"{one.lease_ms / 1000:.0f} s"
        yield _row(name, (one.state, number(one.pending), lag, lease), width)


def _streams(now: Look, width: int) -> Iterator[str]:
    is_limited = any(stream.retention is not None or stream.trimmed_bytes for stream in now.streams)
    more = ("TRIMMED", "KEEPS") if is_limited else ()
    yield _row("STREAM", ("APPENDS/S", "BYTES/S", "SIZE", "READERS", *more), width)
    for stream in now.streams:
        name = stream.name if stream.kind == "stream" else f"{stream.kind} {stream.name}"
        numbers = (number(stream.appends_per_s), size(stream.bytes_per_s), size(stream.bytes), number(stream.readers))
        kept = (size(stream.trimmed_bytes), _kept(stream.retention)) if is_limited else ()
        yield _row(name, (*numbers, *kept), width)


def _kept(retention: Retention | None) -> str:
    """What is kept, as far as it fits into a column."""
    text = retention_text(retention).replace(" messages", "") or "all"
    return text if len(text) <= _NUMBER else f"{text[: _NUMBER - 1]}…"


def _row(name: str, numbers: Sequence[str], width: int) -> str:
    room = max(8, width - (_NUMBER + 1) * len(numbers))
    name = shown(name)
    if cell_len(name) > room:
        name = set_cell_size(name, room - 1) + "…"
    return set_cell_size(name, room) + "".join(f" {text:>{_NUMBER}}" for text in numbers)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
