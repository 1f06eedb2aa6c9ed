"""Quotas: limits on the number of streams and on their size, for the whole log, for prefixes of paths and for tokens.

They are checked on the events of a decision. So a request that adds nothing (a retry, a create of an existing stream, a
close) is never refused. A fork counts as a stream. Its inherited bytes do not count. A deleted stream that forks still
read counts.

The snapshot that compaction has made of a stream is a hidden stream below the path of that one, with the same owner. It
does not count as a stream, and its bytes count. Neither is refused: for a moment there are the snapshot and what it
replaces, and then less than before.

A prefix covers the path of that name and all paths below it: `a` covers `a` and `a/b`, not `ab`. Several prefixes can
cover a path; each is checked. What a prefix uses is counted with every accepted event, so that a check looks nothing
up. The counts are made when the engine starts, from the streams below the prefixes, and repeated if other servers use
the same streams (`engine/recounting.py`).

A stream counts for the token that created it, its owner, whoever appends to it. Owners are names, so that a token that
replaces another one of the same name takes over its streams. If a token has a quota of streams or bytes when the engine
starts, what every owner has is counted, so that quotas of other tokens can be added and changed later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from headwater.errors import QuotaExceededError, StreamFullError, TooManyStreamsError
from headwater.limits import CACHED_TEXT_LENGTH_MAX, PATH_KINDS, PATHS_CACHED_MAX, SNAPSHOT_PREFIX
from headwater.log.events import Appended, Created, Deleted, Record, Trimmed
from headwater.log.state import StreamState


class CountedStreams(Protocol):
    """The newest states, and their number."""

    @property
    def count(self) -> int: ...

    def get(self, stream_id: int) -> StreamState: ...


class Quota(msgspec.Struct, frozen=True):
    """What the streams of a prefix or a token may use. 0: no limit. The rate and the readers are limited where requests
    arrive."""

    name: str
    streams_max: int = 0
    bytes_max: int = 0
    appends_per_s: int = 0
    live_readers_max: int = 0

    @property
    def key(self) -> str:
        """What is used is counted under this key. No identity of a request begins like it."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """Which streams these are, for messages."""
        raise NotImplementedError


class PrefixQuota(Quota, frozen=True):
    """The quota of a prefix, for all streams and tables at and below it."""

    @property
    def key(self) -> str:
        return f"below {self.name}"

    @property
    def where(self) -> str:
        return f"below {self.name!r}"


class TokenQuota(Quota, frozen=True):
    """The quota of a token, for the streams and tables that it created, its appends and its live readers."""

    @property
    def key(self) -> str:
        return owner_key(self.name)

    @property
    def where(self) -> str:
        return f"of the token {self.name!r}"


def owner_key(owner: str) -> str:
    return f"token {owner}"


class Prefixes:
    """Finds the quotas of a path."""

    def __init__(self, quotas: Iterable[PrefixQuota]) -> None:
        self.by_prefix = {quota.name: quota for quota in quotas}
        self._known: dict[str, tuple[PrefixQuota, ...]] = {}  # by path; bounded, because clients choose paths

    def __bool__(self) -> bool:
        return bool(self.by_prefix)

    @property
    def outermost(self) -> list[str]:
        """The prefixes that are not below another one."""
        return [prefix for prefix in self.by_prefix if len(self.of(prefix)) == 1]

    def of(self, path: str) -> tuple[PrefixQuota, ...]:
        """The quotas of a path in the log, whether it is that of a stream or of a table."""
        quotas = self._known.get(path)
        if quotas is None:
            quotas = tuple(self._covering(path.lstrip("".join(PATH_KINDS))))
            if len(path) <= CACHED_TEXT_LENGTH_MAX:
                if len(self._known) >= PATHS_CACHED_MAX:
                    self._known.clear()
                self._known[path] = quotas
        return quotas

    def _covering(self, path: str) -> Iterable[PrefixQuota]:
        end = path.find("/")
        while end != -1:
            if path[:end] in self.by_prefix:
                yield self.by_prefix[path[:end]]
            end = path.find("/", end + 1)
        if path in self.by_prefix:
            yield self.by_prefix[path]


class TokenQuotas:
    """The quotas of tokens, by name. They change while the server runs."""

    def __init__(self, quotas: Iterable[TokenQuota] = ()) -> None:
        self.use(quotas)

    def use(self, quotas: Iterable[TokenQuota]) -> None:
        self.by_name = {quota.name: quota for quota in quotas}

    @property
    def limits_storage(self) -> bool:
        return any(quota.streams_max or quota.bytes_max for quota in self.by_name.values())

    def of(self, name: str) -> tuple[TokenQuota, ...]:
        """The quota of a token, if it has one. Callers without a token have no name."""
        quota = self.by_name.get(name) if name else None
        return () if quota is None else (quota,)


class UsedAmount(msgspec.Struct):
    """What the streams of a prefix or an owner use."""

    streams: int = 0
    bytes: int = 0


class Usage:
    """What each prefix with a quota and each owner uses, including events that are not durable yet. Owners are counted
    only if a token has a quota of streams or bytes from the start (`counts_owners`)."""

    def __init__(self, prefixes: Prefixes, tokens: TokenQuotas | None = None) -> None:
        self.prefixes = prefixes
        self.tokens = tokens or TokenQuotas()
        self.counts_owners = self.tokens.limits_storage
        self._uses: dict[str, UsedAmount] = {}  # by the key of a quota; those that are 0 are not kept

    def __bool__(self) -> bool:
        return bool(self.prefixes) or self.counts_owners

    def empty(self) -> Usage:
        """For a count of the same prefixes and owners."""
        usage = Usage(self.prefixes, self.tokens)
        usage.counts_owners = self.counts_owners
        return usage

    def take(self, count: Usage) -> None:
        """Use the numbers of another count from now on."""
        self._uses = count._uses

    @property
    def is_incomplete(self) -> bool:
        """Whether a token has a quota of streams or bytes that needs a restart, because owners are not counted."""
        return not self.counts_owners and self.tokens.limits_storage

    def of(self, quota: Quota) -> UsedAmount:
        return self._uses.get(quota.key) or UsedAmount()

    def add(self, path: str, owner: str, streams: int, size_bytes: int) -> None:
        for quota in self.prefixes.of(path):
            self._add(quota.key, streams, size_bytes)
        if owner and self.counts_owners:
            self._add(owner_key(owner), streams, size_bytes)

    def _add(self, key: str, streams: int, size_bytes: int) -> None:
        use = self._uses.setdefault(key, UsedAmount())
        use.streams += streams
        use.bytes += size_bytes
        if not use.streams and not use.bytes:
            del self._uses[key]

    def note(self, record: Record, state_of: Callable[[int], StreamState], sign: int = 1) -> None:
        """Count a record that was accepted, or, with the sign -1, one that was withdrawn."""
        for event in record:
            if isinstance(event, Created | Appended | Deleted | Trimmed):
                state = state_of(event.id)
                streams, size_bytes = _change(event, state)
                self.add(state.path, state.owner, sign * streams, sign * size_bytes)

    def check(self, streams: CountedStreams, record: Record) -> None:
        added: dict[Quota, UsedAmount] = {}
        for event in record:
            if isinstance(event, Created | Appended | Deleted):
                state = None if isinstance(event, Created) else streams.get(event.id)
                stream = event if isinstance(event, Created) else streams.get(event.id)
                if is_snapshot(stream.path):
                    continue
                more_streams, more_bytes = _change(event, state)
                for quota in self._quotas_of(stream.path, stream.owner):
                    use = added.setdefault(quota, UsedAmount())
                    use.streams += more_streams
                    use.bytes += more_bytes
        for quota, more in added.items():
            self._check(quota, more)

    def _quotas_of(self, path: str, owner: str) -> tuple[Quota, ...]:
        owned = self.tokens.of(owner) if self.counts_owners else ()
        return (*self.prefixes.of(path), *owned)

    def _check(self, quota: Quota, more: UsedAmount) -> None:
        use = self.of(quota)
        if quota.streams_max and more.streams > 0 and use.streams + more.streams > quota.streams_max:
            raise TooManyStreamsError(
                f"there are {use.streams} streams and tables {quota.where}; the limit is {quota.streams_max}"
            )
        if quota.bytes_max and more.bytes > 0 and use.bytes + more.bytes > quota.bytes_max:
            raise QuotaExceededError(
                f"the streams and tables {quota.where} have {use.bytes} bytes; {more.bytes} more exceed the "
                f"limit of {quota.bytes_max}"
            )


def _change(event: Created | Appended | Deleted | Trimmed, state: StreamState | None) -> tuple[int, int]:
    """How many streams and bytes an event adds. `state` is that of a deleted stream before the event."""
    if type(event) is Appended:
        return 0, len(event.data)
    if isinstance(event, Created):
        return counted_streams(event.path), len(event.data)
    if isinstance(event, Trimmed):
        return 0, -event.size_bytes
    return (-1, 0) if state is None else (-counted_streams(state.path), -state.size)


def is_snapshot(path: str) -> bool:
    return path.startswith(SNAPSHOT_PREFIX)


def counted_streams(path: str) -> int:
    """How many streams the one at a path counts for."""
    return 0 if is_snapshot(path) else 1


class Quotas(msgspec.Struct, frozen=True):
    """0: no limit."""

    streams_max: int = 0
    stream_bytes_max: int = 0
    usage: Usage | None = None  # None: there are no quotas of prefixes and tokens

    def __bool__(self) -> bool:
        return bool(self.streams_max or self.stream_bytes_max or self.usage)

    def check(self, streams: CountedStreams, events: Record) -> None:
        """Raise an error if the events would exceed a quota."""
        grown = 0
        for event in events:
            if type(event) is Appended:
                self._check_bytes(streams.get(event.id), event.data)
            elif isinstance(event, Created):
                grown += counted_streams(event.path)
                self._check_size(len(event.data), len(event.data))
            elif isinstance(event, Deleted):
                grown -= 1
        if grown > 0 and self.streams_max and streams.count + grown > self.streams_max:
            raise TooManyStreamsError(
                f"there are {streams.count} streams and tables; the limit is {self.streams_max} (streams_max)"
            )
        if self.usage is not None:
            self.usage.check(streams, events)

    def _check_bytes(self, state: StreamState, data: bytes) -> None:
        if not is_snapshot(state.path):
            self._check_size(state.size + len(data), len(data))

    def _check_size(self, size_bytes: int, added_bytes: int) -> None:
        most = self.stream_bytes_max
        if added_bytes and most and size_bytes > most:
            raise StreamFullError(
                f"the stream or table has {size_bytes - added_bytes} bytes; {added_bytes} more exceed "
                f"the limit of {most} (stream_bytes_max)"
            )
