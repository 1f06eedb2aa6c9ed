"""The driver's side of a source: finds the streams and their tails, and plans what a batch reads and its parts.

It works with any server. A Headwater server also lists streams by pattern, gives offsets at which a range can be split,
and has offsets that count bytes.
"""

from __future__ import annotations

import contextlib
import logging
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice, pairwise
from typing import Any

import msgspec

from headwater import limits
from headwater.client import Client, Reader, Stream, StreamInfo
from headwater.errors import (
    DataLossError,
    HeadwaterError,
    InvalidOffsetError,
    OffsetGoneError,
    OffsetLostError,
    OffsetTrimmedError,
    OptionError,
    ProtocolError,
    RequestError,
    StreamGoneError,
    StreamNotFoundError,
    UnauthorizedError,
)
from headwater.log.content import ContentKind, kind_of
from headwater.log.json_framing import split_array
from headwater.positions import BEGINNING, Position, byte_position, incarnation, is_in_snapshot
from headwater.spark.catalogue import StreamDirectory
from headwater.spark.options import EARLIEST, LATEST, ReadOptions
from headwater.spark.parallel import in_parallel
from headwater.spark.positions import EARLIEST_PLACE, SnapshotOf, StreamPlace, StreamRange, parse_place
from headwater.spark.sharing import BatchLimits, Division, Walked, moment

log = logging.getLogger(__name__)

Places = Mapping[str, StreamPlace]


class Planner:
    """Plans the batches of one query. It lives in the driver as long as the query."""

    def __init__(self, options: ReadOptions, client: Client) -> None:
        self._options = options
        self._client = client
        self._catalogue = StreamDirectory(options, client)
        self._inside: dict[str, tuple[StreamPlace, int]] = {}  # the byte at which a place inside a record is
        self._next_times: dict[str, tuple[StreamPlace, int]] = {}  # of the first unread record of streams, in ms
        self._snapshot_ends: dict[str, tuple[str, str]] = {}  # the first offset, and where its snapshot ends
        self._reported: set[str] = set()  # losses that were logged

    # Streams and their tails

    def tails(self) -> dict[str, StreamInfo]:
        """Every stream of the query with its current tail, ordered by path."""
        return self._catalogue.look()

    def is_wanted(self, path: str) -> bool:
        """Whether the options select this stream."""
        return self._catalogue.is_wanted(path)

    def check(self) -> dict[str, StreamInfo]:
        """The streams at the start of a query. All named streams must exist, unless data loss is accepted."""
        tails = self.tails()
        missing = [path for path in self._options.streams if path not in tails]
        if missing and not self._options.fail_on_data_loss:
            log.warning("no stream at %s", ", ".join(missing))
        elif missing:
            error = StreamNotFoundError(f"no stream at {', '.join(missing)}")
            error.url = self._options.url
            raise error
        return tails

    def resolve(self, wanted: str | dict[str, str], streams: Mapping[str, StreamInfo]) -> dict[str, StreamPlace]:
        """The positions in startingOffsets or endingOffsets."""
        default = wanted if isinstance(wanted, str) else None
        by_stream = {} if isinstance(wanted, str) else wanted
        if self._options.pattern is not None and (unknown := sorted(by_stream.keys() - streams.keys())):
            raise OptionError(f"offsets are given for streams that do not exist: {', '.join(unknown)}")
        other = EARLIEST if wanted is self._options.starting_offsets else LATEST
        places = {path: _place(default or by_stream.get(path, other), info) for path, info in streams.items()}
        in_parallel(lambda path: self._check_place(path, places[path]), sorted(by_stream.keys() & places.keys()))
        return places

    def _check_place(self, path: str, place: StreamPlace) -> None:
        """Refuse a position that the stream does not have. Only servers with Headwater's extensions can check that."""
        stream = self._client.stream(path)
        if place != EARLIEST_PLACE and self._extends(stream):
            try:
                stream.splits(offset=place.offset, parts=1)
            except (OffsetGoneError, InvalidOffsetError) as error:
                raise OptionError(f"{place} is not a position of {path}: {error}") from None

    # The range of a batch

    def advance(self, start: Places, ends: Mapping[str, StreamInfo], *, limited: bool) -> dict[str, StreamPlace]:
        """The end of a batch that starts at `start`: the tails of the streams, or where a limit is reached."""
        gone = {path for path in start.keys() - ends.keys() if self.is_wanted(path)}
        for path in sorted(gone):
            if not start[path].ended:
                self._report_loss(path, start[path], "the stream does not exist any more")
        kept = {path: place for path, place in start.items() if path not in gone}  # also deselected streams
        moved: dict[str, tuple[StreamPlace, StreamPlace]] = {}
        for path, info in ends.items():
            before, end = start.get(path, EARLIEST_PLACE), StreamPlace(info.tail_offset, ended=info.closed)
            if not (before.is_at(end) or _is_empty(before, end)):
                moved[path] = (before, end)
            elif end.ended:
                kept[path] = end
        elsewhere = [
            path
            for path, places in moved.items()
            if _is_elsewhere(*places) or self._may_be_trimmed(path, places[0], ends[path].first_offset)
        ]
        begins = in_parallel(lambda path: self.parts(path, *moved[path], 1)[0], elsewhere)
        checked = dict(zip(elsewhere, begins, strict=True))
        behind = {
            path: (checked.get(path) or self._checked(path, before, end), end) for path, (before, end) in moved.items()
        }
        if limited and (self._options.max_records_per_trigger or self._options.max_bytes_per_trigger):
            most = (self._options.max_records_per_trigger, self._options.max_bytes_per_trigger)
            return kept | Division(self, behind, most).places()
        return kept | {path: end for path, (_, end) in behind.items()}

    def _checked(self, path: str, before: StreamPlace, end: StreamPlace) -> StreamPlace:
        """Where to continue: where the query stopped, if the stream still has that position."""
        if before.ended:
            return self._after_end(path, before)
        if end < before:
            self._report_loss(path, before, f"the stream now ends at {end}")
            return EARLIEST_PLACE
        return before

    def _may_be_trimmed(self, path: str, before: StreamPlace, first_offset: str | None) -> bool:
        """Whether data after a position may be gone, given where the stream begins. The server knows for certain."""
        if first_offset is None or before.offset == BEGINNING or before.ended:
            return False
        if not is_in_snapshot(first_offset) or is_in_snapshot(before.offset):
            return before.offset < first_offset
        known = self._snapshot_ends.get(path)
        if known is None or known[0] != first_offset:
            with contextlib.suppress(OffsetGoneError, InvalidOffsetError, StreamNotFoundError, StreamGoneError):
                answer = self._client.stream(path).splits(offset=first_offset, parts=1)
                known = self._snapshot_ends[path] = (first_offset, answer.snapshot_next or "")
        return known is None or before.offset < known[1]

    def _after_end(self, path: str, before: StreamPlace) -> StreamPlace:
        """Where to continue in a stream that was read to its end and has data after it: it was created again, or the
        server was restored to a state in which it was not closed."""
        stream = self._client.stream(path)
        if not self._extends(stream):
            return EARLIEST_PLACE
        try:
            stream.splits(offset=before.offset, parts=1)
        except (OffsetLostError, OffsetTrimmedError) as error:
            self._report_loss(path, before, _reason(error))
            return EARLIEST_PLACE
        except (OffsetGoneError, InvalidOffsetError, StreamNotFoundError, StreamGoneError):
            return EARLIEST_PLACE
        return StreamPlace(before.offset, before.skip, before.end)

    # What the division of limits asks (`sharing.StreamSurvey`)

    def walk(self, shares: Mapping[str, tuple[StreamPlace, StreamPlace, BatchLimits]]) -> dict[str, Walked]:
        walks = [_Walk(self, path, start, end) for path, (start, end, _) in shares.items()]
        ends = in_parallel(lambda one: one[0].bounded(one[1]), [(w, shares[w.path][2]) for w in walks])
        walked = {}
        for walk, end in zip(walks, ends, strict=True):
            tail = shares[walk.path][1]
            walked[walk.path] = Walked(tail if end.is_at(tail) else end, walk.records, walk.bytes, walk.records_in)
        return walked

    def next_times(self, places: Mapping[str, StreamPlace]) -> dict[str, int] | None:
        """Times are kept for places that were asked for, because most streams stay where they are in a batch."""
        if self._catalogue.extended is False:
            return None
        unknown = [path for path, place in places.items() if self._next_times.get(path, (None, 0))[0] != place]
        try:
            times = in_parallel(lambda path: self._next_time(path, places[path]), unknown)
        except (ProtocolError, RequestError) as error:
            if self._catalogue.extended or isinstance(error, UnauthorizedError):
                raise
            return None
        self._next_times |= {path: (places[path], at) for path, at in zip(unknown, times, strict=True)}
        return {path: self._next_times[path][1] for path in places}

    def _next_time(self, path: str, place: StreamPlace) -> int:
        at = self._byte_of(path, place)
        for page in self._client.stream(path).record_times(offset=place.offset, page=limits.RECORDS_PAGE_DEFAULT):
            first = byte_position(page.offset) or 0
            number = bisect_right(page.ends, at - first)
            if number < len(page.ends):
                return page.times_ms[number]
        return 0  # the stream was deleted meanwhile, which reading it will tell

    def _byte_of(self, path: str, place: StreamPlace) -> int:
        """The byte of the stream at which a place is, which may be inside a record."""
        begin = byte_position(place.offset) or 0
        if not place.skip or not self.is_json(path):
            return begin + place.skip
        known = self._inside.get(path)
        if known is None or known[0] != place:
            with self._client.stream(path).read(type=_Sizes(), offset=place.offset) as reader:
                known = (place, begin + sum(islice(reader, place.skip)))
            self._inside[path] = known
        return known[1]

    def bytes_until(self, ends: Mapping[str, tuple[StreamPlace, int]]) -> dict[str, tuple[StreamPlace, int]]:
        def measure(path: str) -> tuple[StreamPlace, int]:
            start, at_ms = ends[path]
            cut = self._client.stream(path).offset_at(moment(at_ms))
            return StreamPlace(cut), (byte_position(cut) or 0) - self._byte_of(path, start)

        return dict(zip(ends, in_parallel(measure, ends), strict=True))

    def size(self, start: StreamPlace, end: StreamPlace) -> int:
        return _size(start, end)

    # The parts of a batch

    def partitions(self, start: Places, end: Places) -> list[list[StreamRange]]:
        """The ranges of a batch, for as many tasks as the options say or the size requires."""
        moved = {path: (start.get(path, EARLIEST_PLACE), place) for path, place in sorted(end.items())}
        moved = {path: places for path, places in moved.items() if not places[0].is_at(places[1])}
        moved = {
            path: (self._after_end(path, before) if before.ended else before, end)
            for path, (before, end) in moved.items()
        }
        moved = {path: places for path, places in moved.items() if not _is_empty(*places)}
        self._catalogue.learn(moved)
        parts = self._wanted_parts(moved)
        by_stream = {path: self._whole_range(path, *moved[path]) for path in moved if parts[path] == 1}
        paths = [path for path in moved if not by_stream.get(path)]
        answers = in_parallel(lambda path: list(self._ranges(path, *moved[path], parts[path])), paths)
        by_stream |= dict(zip(paths, answers, strict=True))
        ranges = [part for path in moved for part in by_stream[path]]
        most = max(self._options.min_partitions, limits.SPARK_PARTITIONS_MAX)
        if len(ranges) <= most:
            return [[part] for part in ranges]
        return [ranges[len(ranges) * i // most : len(ranges) * (i + 1) // most] for i in range(most)]

    def _wanted_parts(self, moved: Mapping[str, tuple[StreamPlace, StreamPlace]]) -> dict[str, int]:
        sizes = {path: _size(*places) for path, places in moved.items()}
        total, options = sum(sizes.values()) or 1, self._options
        return {
            path: max(math.ceil(size / options.max_partition_bytes), math.ceil(options.min_partitions * size / total))
            for path, size in sizes.items()
        }

    def _whole_range(self, path: str, before: StreamPlace, after: StreamPlace) -> list[StreamRange]:
        """A range as one part, planned without a request; empty if the server has to be asked. Its offsets contain the
        incarnation of the stream, so a task notices if the stream was created again."""
        seen = self._catalogue.seen(path)
        if seen is None or not self._catalogue.extended or after < before or incarnation(after.offset) is None:
            return []
        if before.end or after.end:
            return []
        if self._may_be_trimmed(path, before, seen.first_offset):
            return []
        if before.offset == BEGINNING and is_in_snapshot(seen.first_offset or ""):
            return []  # it begins with another range
        if before.offset == BEGINNING:
            if seen.first_offset is None or incarnation(seen.tail_offset) != incarnation(after.offset):
                return []
            before = StreamPlace(seen.first_offset, before.skip)
        elif incarnation(before.offset) != incarnation(after.offset):
            return []
        return [self._range(path, before, Position(after.offset, after.skip))]

    def _ranges(self, path: str, before: StreamPlace, after: StreamPlace, wanted: int) -> Iterator[StreamRange]:
        try:
            start, cuts = self.parts(path, before, after, wanted)
            if start.offset != before.offset != BEGINNING and not self._has(path, after):
                return  # the stream was deleted; the next batch starts with its new incarnation
            before = start
            self._catalogue.find(path)
        except (StreamNotFoundError, StreamGoneError) as error:
            self._report_loss(path, before, str(error))
            return
        last = Position(before.offset if after.offset == BEGINNING else after.offset, after.skip, after.end)
        following = self._after_snapshot(path, before)
        if following is not None and following not in cuts and not is_in_snapshot(last.offset):
            cuts = sorted([*cuts, following])
        for begin, end in pairwise([before, *map(Position, cuts), last]):
            if not StreamPlace(begin.offset, begin.skip).is_at(StreamPlace(end.offset, end.skip)):
                yield self._range(path, begin, end, following if is_in_snapshot(begin.offset) else None)

    def _after_snapshot(self, path: str, place: StreamPlace) -> str | None:
        """Where the stream continues after the snapshot that a place is in; None if it is in none."""
        if not (is_in_snapshot(place.offset) and self._catalogue.extended):
            return None
        return self._client.stream(path).splits(offset=place.offset, parts=1).snapshot_next

    def _range(self, path: str, start: Position, end: Position, following: str | None = None) -> StreamRange:
        content_type = self._catalogue.find(path).content_type
        of = None if following is None else SnapshotOf(path, following, None)
        return StreamRange(path, content_type, start, end, self._catalogue.extended is True, of)

    def _has(self, path: str, place: StreamPlace) -> bool:
        try:
            self._client.stream(path).splits(until=place.offset, parts=1)
        except (OffsetGoneError, InvalidOffsetError):
            return False
        except (RequestError, ProtocolError):
            return not self._catalogue.extended
        return True

    def parts(self, path: str, before: StreamPlace, after: StreamPlace, wanted: int) -> tuple[StreamPlace, list[str]]:
        """The start of a range, and where to split it. If the stream was created again, it starts at the beginning."""
        if self._catalogue.extended is False:
            if after < before:
                self._report_loss(path, before, f"the stream now ends at {after}")
                return EARLIEST_PLACE, []
            return before, []
        stream = self._client.stream(path)
        wanted = 1 if before.skip else min(wanted, limits.SPLITS_MAX)
        try:
            for place in (before, after):
                if place.end:  # messages after the offset were counted; they may be lost although the offset is not
                    stream.splits(offset=place.offset, until=place.end, parts=1)
            answer = stream.splits(offset=before.offset, until=after.offset, parts=wanted)
        except (OffsetGoneError, InvalidOffsetError) as error:
            self._report_loss(path, before, _reason(error))
            return (before, []) if before == EARLIEST_PLACE else self.parts(path, EARLIEST_PLACE, after, wanted)
        except UnauthorizedError:
            raise
        except (RequestError, ProtocolError):
            if self._extends(stream):
                raise
            return self.parts(path, before, after, wanted)
        self._catalogue.extended = True
        if (
            before.offset == BEGINNING
        ):  # the first offset has the incarnation, which tells a stream from a later one at its path
            before = StreamPlace(answer.offset, before.skip, before.end)
        return before, answer.splits

    def _extends(self, stream: Stream) -> bool:
        """Whether the server has Headwater's extensions; unknown if the stream does not exist."""
        if self._catalogue.extended is None:
            stream.head()
            try:
                stream.splits(parts=1)
                self._catalogue.extended = True
            except (RequestError, ProtocolError):
                self._catalogue.extended = False
        return self._catalogue.extended

    def is_extended(self, paths: Iterable[str]) -> bool | None:
        """Whether the server has Headwater's extensions, as one of these streams shows; None if none of them exists."""
        for path in paths:
            with contextlib.suppress(StreamNotFoundError, StreamGoneError):
                return self._extends(self._client.stream(path))
        return None

    def first_cut(self, path: str, place: StreamPlace, end: StreamPlace, size: int) -> StreamPlace | None:
        """The last offset at most this many bytes after another where a read may end; None if the server has none."""
        stream = self._client.stream(path)
        if not self._extends(stream):
            return None
        if _bytes_between(place, end) is not None and _size(place, end) <= size:
            return end
        answer = stream.splits(offset=place.offset, until=end.offset, part_bytes=size, limit=1)
        return StreamPlace(answer.splits[0]) if answer.splits else StreamPlace(answer.until)

    def reader_of(self, path: str, place: StreamPlace, end: StreamPlace, wanted: Any) -> Reader[Any]:
        stream = self._client.stream(path)
        return stream.read(type=wanted, offset=place, until=end.offset)

    def is_json(self, path: str) -> bool:
        return kind_of(self._catalogue.find(path).content_type) is ContentKind.JSON

    def _report_loss(self, path: str, before: StreamPlace, what: str) -> None:
        message = f"{path}: unread data after {before} is lost: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(message)
        if message not in self._reported:
            self._reported.add(message)
            log.warning("%s", message)


class _Sizes:
    """Decodes messages to their sizes, including the comma."""

    @staticmethod
    def decode_array(text: bytes) -> list[int]:
        return [len(memoryview(message)) + 1 for message in split_array(text)]


class _Walk:
    """Finds how far a batch can read within its limits."""

    def __init__(self, planner: Planner, path: str, start: StreamPlace, end: StreamPlace) -> None:
        self._planner = planner
        self.path = path
        self._start = start
        self._end = end
        self._sizes: list[int] = []  # of the messages that were counted
        self.records = 0
        self.bytes = 0

    def bounded(self, share: BatchLimits) -> StreamPlace:
        """The position after this many records or bytes."""
        end, (records, size) = self._end, share
        if size is not None and not self._start.skip:
            near = self._planner.first_cut(self.path, self._start, end, size)
            if near is not None:
                end, size = near, None
        is_json = self._planner.is_json(self.path)
        if is_json and (records is not None or size is not None):
            return self._counted(end, records, size)
        if size is not None:
            return self._counted_bytes(end, size)
        self.bytes = _size(self._start, end)
        return end

    def records_in(self, size: int) -> int:
        """The number of messages in the first bytes."""
        return bisect_right(list(accumulate(self._sizes)), size) if self._sizes else self.records

    def _counted_bytes(self, end: StreamPlace, size: int) -> StreamPlace:
        """The same for a stream of bytes, which can be split anywhere."""
        place = self._start
        with self._planner.reader_of(self.path, place, end, bytes) as reader:
            for batch in reader.batches():
                data = b"".join(batch.items)
                if len(data) > size - self.bytes:
                    taken = _character_boundary(data, size - self.bytes)
                    self.bytes += taken
                    return place.after(taken, batch.position.reached)
                self.bytes += len(data)
                place = StreamPlace(batch.offset, batch.skip, batch.position.end)
        return end

    def _counted(self, end: StreamPlace, records: int | None, size: int | None) -> StreamPlace:
        """Read the messages and count them, because the number of messages is not known otherwise."""
        place = self._start
        with self._planner.reader_of(self.path, place, end, _Sizes()) as reader:
            for batch in reader.batches():
                taken = self._take(batch.items, records, size)
                if taken < len(batch.items):
                    return self._at_boundary(place, batch.items[:taken], batch.position.reached)
                place = StreamPlace(batch.offset, batch.skip, batch.position.end)
        return end

    def _take(self, sizes: list[int], records: int | None, size: int | None) -> int:
        """The number of messages within the limits, at least one."""
        taken = len(sizes) if records is None else min(len(sizes), records - self.records)
        if size is not None:
            bytes_left = size - self.bytes
            for number, one in enumerate(sizes[:taken]):
                bytes_left -= one
                if bytes_left < 0:
                    taken = number if number or self.records else 1
                    break
        self.records += taken
        self.bytes += sum(sizes[:taken])
        self._sizes += sizes[:taken]
        return taken

    def _at_boundary(self, place: StreamPlace, taken: list[int], reached: str) -> StreamPlace:
        """The end of a batch that reads some messages after a position: at an offset if one is near, which makes the
        next range cacheable, otherwise inside an append."""
        inside = place.after(len(taken), reached)
        if place.skip or not taken:
            return inside
        near = self._planner.first_cut(self.path, place, self._end, sum(taken))
        if near is None:
            return inside
        position, before = byte_position(near.offset), byte_position(place.offset)
        if incarnation(near.offset) != incarnation(place.offset) and is_in_snapshot(place.offset):
            return inside
        if position is None or before is None or not before < position <= before + sum(taken):
            return inside
        unwanted = before + sum(taken) - position
        while unwanted > 0:
            one = taken.pop()
            unwanted -= one
            self.bytes -= one
            self.records -= 1
        return near


def earliest(info: StreamInfo) -> StreamPlace:
    """Where a stream begins: as an offset, so that a batch that is repeated notices what was trimmed meanwhile."""
    return EARLIEST_PLACE if info.first_offset is None else StreamPlace(info.first_offset)


def _place(word: str, info: StreamInfo) -> StreamPlace:
    if word.lower() == EARLIEST:
        return earliest(info)
    if word.lower() == LATEST:
        return StreamPlace(info.tail_offset, ended=info.closed)
    place = parse_place(word)
    counted_from_beginning = place.offset == EARLIEST_PLACE.offset
    return msgspec.structs.replace(place, offset=earliest(info).offset) if counted_from_beginning else place


def _character_boundary(data: bytes, most: int) -> int:
    """The last position up to `most` that does not split a UTF-8 character, or the one after the first character."""
    cut = most
    while cut > 0 and data[cut] & 0xC0 == 0x80 and most - cut < 4:
        cut -= 1
    if cut > 0:
        return cut
    cut = max(1, most)
    while cut < len(data) and data[cut] & 0xC0 == 0x80 and cut < 4:
        cut += 1
    return cut


def _is_empty(before: StreamPlace, after: StreamPlace) -> bool:
    """Whether a range is certainly empty: it starts and ends at the beginning, written in two ways."""
    return before.is_at(EARLIEST_PLACE) and not after.skip and byte_position(after.offset) == 0


def _is_elsewhere(before: StreamPlace, end: StreamPlace) -> bool:
    """Whether two positions have different incarnations: a fork and its source, or a stream that was created again."""
    is_new = before.ended or before == EARLIEST_PLACE or end < before
    return not is_new and incarnation(before.offset) != incarnation(end.offset)


def _size(before: StreamPlace, after: StreamPlace) -> int:
    """The approximate size of a range in bytes; 1 if the offsets do not count bytes."""
    return max(1, _bytes_between(before, after) or 0)


def _reason(error: HeadwaterError) -> str:
    """Why data is lost, with where the stream begins if it was trimmed."""
    first = error.first_offset if isinstance(error, OffsetTrimmedError) else ""
    return f"{error}; the first offset of the stream is {first}" if first else str(error)


def _bytes_between(before: StreamPlace, after: StreamPlace) -> int | None:
    if is_in_snapshot(before.offset) and not is_in_snapshot(after.offset):
        return None
    start, end = byte_position(before.offset), byte_position(after.offset)
    return end - start if start is not None and end is not None else None


def to_json(places: Places) -> dict[str, str]:
    """The text for the checkpoint. Keys are sorted, because Spark compares it as text."""
    return {path: str(place) for path, place in sorted(places.items())}


def from_json(offset: Mapping[str, str]) -> dict[str, StreamPlace]:
    return {path: parse_place(place) for path, place in offset.items()}
