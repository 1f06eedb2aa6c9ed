"""The start of a query and the end of a batch read: given as offsets or as times."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.client import Client, StreamInfo
from headwater.errors import OptionError, ProtocolError
from headwater.spark.options import EARLIEST, SNAPSHOT, ReadOptions, Times
from headwater.spark.parallel import in_parallel
from headwater.spark.planning import Planner, earliest
from headwater.spark.positions import StreamPlace
from headwater.spark.sharing import moment


class Bounds:
    """The bounds of one query's streams."""

    def __init__(self, options: ReadOptions, client: Client, planner: Planner) -> None:
        self._options = options
        self._client = client
        self._planner = planner

    def start(self, streams: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        options = self._options
        if options.starting_timestamp is not None:
            places = self._at("startingTimestamp", options.starting_timestamp, streams)
            return {path: earliest(info) for path, info in streams.items()} | places
        wanted = EARLIEST if options.starting_offsets == SNAPSHOT else options.starting_offsets
        return self._planner.resolve(wanted, streams)

    def end(self, streams: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        options = self._options
        if options.ending_timestamp is not None:
            ends = {path: _end(info) for path, info in streams.items()}
            return ends | self._at("endingTimestamp", options.ending_timestamp, streams)
        return self._planner.resolve(options.ending_offsets, streams)

    def check_order(self, start: Mapping[str, StreamPlace], end: Mapping[str, StreamPlace]) -> None:
        """Raise an error for an end before the start, unless it is the tail of the stream."""
        options = self._options
        if options.ending_timestamp is None and isinstance(options.ending_offsets, str):
            return
        for path, place in start.items():
            if end[path] < place:
                raise OptionError(f"{path}: the end {end[path]} is before the start {place}")

    def _at(self, name: str, times: Times, streams: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        """The position of the first record appended at or after a time; the tail if there is none."""
        if isinstance(times, dict) and (unknown := sorted(times.keys() - streams.keys())) and self._options.pattern:
            raise OptionError(f"{name} names streams that do not exist: {', '.join(unknown)}")
        wanted = times if isinstance(times, dict) else dict.fromkeys(streams, times)

        def place(path: str) -> tuple[str, StreamPlace]:
            end = _end(streams[path])
            try:
                offset = self._client.stream(path).offset_at(moment(wanted[path]))
            except ProtocolError as error:
                words = name.replace("Timestamp", "Offsets")
                raise OptionError(f"{name} needs a server with record times; use {words}: {error}") from None
            return path, StreamPlace(offset) if offset < end.offset else end

        return dict(in_parallel(place, sorted(wanted.keys() & streams.keys())))


def _end(info: StreamInfo) -> StreamPlace:
    return StreamPlace(info.tail_offset, ended=info.closed)
