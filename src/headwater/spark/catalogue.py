"""Finds the streams of a query and their tails.

A Headwater server lists streams in pages, which is used for a pattern and for many named streams. A few streams, and
those of other servers, are requested one by one, several at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator

from headwater import limits
from headwater.client import Client, StreamInfo
from headwater.errors import OptionError, ProtocolError, RequestError, StreamGoneError, StreamNotFoundError
from headwater.protocol.globs import fixed_part, glob
from headwater.spark.options import JOURNAL_ROOT, ReadOptions, StateReadOptions
from headwater.spark.parallel import in_parallel
from headwater.state.bootstrap import SNAPSHOTS


class NamedStreams:
    """Streams of a server, by name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lists = True  # whether to search named streams in the list
        self.extended: bool | None = None  # whether the server has Headwater's extensions; None: not known yet

    def named(self, wanted: Collection[str], *, ask_twice: bool = True) -> dict[str, StreamInfo]:
        """The streams that exist, ordered by path. A stream that is not in the list is requested by itself, because a
        server may list only the streams that a token allows."""
        paths = sorted(wanted)
        streams, until = self._in_list(paths) if self._lists and len(paths) > limits.SPARK_HEADS_MAX else ({}, "")
        others = [path for path in paths if path not in streams and (ask_twice or path > until)]
        heads = zip(others, in_parallel(self._head, others), strict=True)
        streams |= {path: info for path, info in heads if info is not None}
        return dict(sorted(streams.items()))

    def _in_list(self, paths: list[str]) -> tuple[dict[str, StreamInfo], str]:
        """The named streams in a list, and the last path that was searched.

        If the list has many other streams between them, single requests are cheaper, and the list is not used again.
        """
        wanted, passed = set(paths), 0
        streams: dict[str, StreamInfo] = {}
        try:
            for info in self.listed(_common(paths[0], paths[-1])):
                if info.path > paths[-1]:
                    break
                if info.path in wanted:
                    streams[info.path] = info
                passed += 1
                if passed > limits.SPARK_LISTED_PER_NAMED_MAX * len(paths):
                    self._lists = False
                    return streams, info.path
        except (RequestError, ProtocolError):
            self._lists = False  # the server has no list, or does not allow it
            return {}, ""
        return streams, paths[-1]

    def listed(self, prefix: str) -> Iterator[StreamInfo]:
        for info in self._client.list(prefix):
            if info.first_offset is not None:
                self.extended = True
            yield info

    def _head(self, path: str) -> StreamInfo | None:
        try:
            return self._client.stream(path).head()
        except (StreamNotFoundError, StreamGoneError):
            return None


class StreamDirectory(NamedStreams):
    """The streams of a query."""

    def __init__(self, options: ReadOptions, client: Client) -> None:
        super().__init__(client)
        self._options = options
        self._dead_letters = options.dead_letter_stream if isinstance(options, StateReadOptions) else None
        self._seen: dict[str, StreamInfo] = {}

    def look(self) -> dict[str, StreamInfo]:
        """Every stream of the query with its current tail, ordered by path."""
        if self._options.pattern is not None:
            streams = dict(self._matching(self._options.pattern))
        else:
            streams = self.named(self._options.streams)
        self._seen |= streams
        return streams

    def seen(self, path: str) -> StreamInfo | None:
        """The last known state of a stream."""
        return self._seen.get(path)

    def find(self, path: str) -> StreamInfo:
        """The last known state of a stream, requested if it is not known yet."""
        if path not in self._seen:
            self._seen[path] = self._client.stream(path).head()
        return self._seen[path]

    def learn(self, paths: Iterable[str]) -> None:
        """Request the streams of a batch that another driver planned."""
        unknown = [path for path in paths if path not in self._seen]
        if unknown and self._options.pattern is not None:
            self.look()
        elif unknown:
            self._seen |= self.named(unknown)

    def is_wanted(self, path: str) -> bool:
        """Patterns do not match internal streams, and match snapshots only if they name them."""
        pattern = self._options.pattern
        if pattern is None:
            return path in self._options.streams
        is_data = SNAPSHOTS not in path or SNAPSHOTS in pattern
        is_ours = path.startswith(f"{JOURNAL_ROOT}/") or path == self._dead_letters
        return is_data and not is_ours and bool(glob(pattern).fullmatch(path))

    def _matching(self, pattern: str) -> Iterator[tuple[str, StreamInfo]]:
        try:
            for info in self.listed(fixed_part(pattern)):
                if self.is_wanted(info.path):
                    yield info.path, info
        except (StreamNotFoundError, ProtocolError) as error:
            raise OptionError(f"pattern needs a server that lists its streams; use streams instead: {error}") from None


def _common(first: str, last: str) -> str:
    """The common prefix of two texts."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(character for character, _ in same)
