"""The start of a query and the end of a batch read: given as offsets or as times."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.client import Client, StreamInfo
from headwater.errors import OptionError, ProtocolError
from headwater.spark.options import EARLIEST, SNAPSHOT, ReadOptions
from headwater.spark.parallel import in_parallel
from headwater.spark.planning import Planner
from headwater.spark.positions import EARLIEST_PLACE, StreamPlace
from headwater.spark.sharing import moment

Times = int | dict[str, int]  # in milliseconds since 1970, of all streams or by stream


class Bounds:
    """The bounds of one query's streams."""

    def __init__(self, options: ReadOptions, client: Client, planner: Planner) -> None:
        self._options = options
        self._client = client
        self._planner = planner

    def start(self, found: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        options = self._options
        if options.starting_ms is not None:
            return dict.fromkeys(found, EARLIEST_PLACE) | self._at("startingTimestamp", options.starting_ms, found)
        wanted = EARLIEST if options.starting == SNAPSHOT else options.starting
        return self._planner.resolve(wanted, found)

    def end(self, found: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        options = self._options
        if options.ending_ms is not None:
            ends = {path: _end(info) for path, info in found.items()}
            return ends | self._at("endingTimestamp", options.ending_ms, found)
        return self._planner.resolve(options.ending, found)

    def check_order(self, start: Mapping[str, StreamPlace], end: Mapping[str, StreamPlace]) -> None:
        """Raise an error for an end before the start, unless it is the tail of the stream."""
        options = self._options
        if options.ending_ms is None and isinstance(options.ending, str):
            return
        for path, place in start.items():
            if end[path] < place:
                raise OptionError(f"{path}: the end {end[path]} is before the start {place}")

    def _at(self, name: str, times: Times, found: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        """The position of the first record appended at or after a time; the tail if there is none."""
        if isinstance(times, dict) and (unknown := sorted(times.keys() - found.keys())) and self._options.pattern:
            raise OptionError(f"{name} names streams that do not exist: {', '.join(unknown)}")
        wanted = times if isinstance(times, dict) else dict.fromkeys(found, times)

        def place(path: str) -> tuple[str, StreamPlace]:
            end = _end(found[path])
            try:
                offset = self._client.stream(path).offset_at(moment(wanted[path]))
            except ProtocolError as error:
                words = name.replace("Timestamp", "Offsets")
                raise OptionError(f"{name} needs a server with record times; use {words}: {error}") from None
            return path, StreamPlace(offset) if offset < end.offset else end

        return dict(in_parallel(place, sorted(wanted.keys() & found.keys())))


def _end(info: StreamInfo) -> StreamPlace:
    return StreamPlace(info.tail_offset, ended=info.closed)
