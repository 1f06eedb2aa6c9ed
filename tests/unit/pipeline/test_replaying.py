"""A replay appends the data that the target lacks, once, and nothing if the content differs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import limits
from headwater.client import Client, Stream
from headwater.errors import (
    IncompleteArchiveError,
    NetworkError,
    ReplayError,
    SequenceRegressionError,
    StreamClosedError,
)
from headwater.pipeline.continuity import Faults
from headwater.pipeline.lake import Lake
from headwater.pipeline.replaying import (
    Appends,
    Messages,
    Noted,
    check_noted,
    lives_of,
    report,
    without_repeats,
    write_back,
    written,
)
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(params=["application/json", "application/octet-stream"])
def target(client: Client, request: pytest.FixtureRequest) -> Stream:
    stream = client.stream(f"replayed/{next(_numbers)}")
    stream.create(content_type=request.param)
    return stream


RECORDS = [bytes([48 + number]) * (number + 1) for number in range(1, 9)]  # each of them JSON


def content(target: Stream, count: int = len(RECORDS)) -> Messages | Appends:
    ends = list(itertools.accumulate(map(len, RECORDS)))
    rows = ({"value": one, "append_end": end} for one, end in zip(RECORDS[:count], ends, strict=False))
    return Messages(rows) if target.content_type == "application/json" else Appends(rows)


def whole(target: Stream) -> bytes:
    return b"".join(target.read(type=bytes).all())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PIPELINE_REPLAY_MESSAGES", 2)
    monkeypatch.setattr(limits, "PIPELINE_REPLAY_PAUSE_S", 0.0)


def test_everything_is_written_once(target: Stream) -> None:
    assert write_back(target, content(target)) == (len(RECORDS), False)
    assert whole(target) == b"".join(RECORDS)
    assert write_back(target, content(target)) == (0, False)
    assert write_back(target, content(target, 3)) == (0, True)


def test_a_second_replay_appends_the_new_data_of_the_archive(target: Stream) -> None:
    for count in (3, 3, 5, 8):
        write_back(target, content(target, count))
        assert whole(target) == b"".join(RECORDS[:count])


@pytest.mark.parametrize("seed", range(10))
def test_lost_requests_and_responses_change_nothing(target: Stream, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    append_many = Stream.append_many

    def lossy(self: Stream, values: Any, **named: Any) -> Any:
        lost = chance.choice(("request", "answer", "", ""))
        if lost == "request":
            raise NetworkError("lost")
        appended = append_many(self, values, **named)
        if lost == "answer":
            raise NetworkError("lost")
        return appended

    monkeypatch.setattr(Stream, "append_many", lossy)
    for _ in range(20):
        try:
            write_back(target, content(target))
            break
        except NetworkError:
            pass  # the task fails, and Spark or a scheduler runs it again
    assert whole(target) == b"".join(RECORDS)


def test_an_append_of_an_earlier_run_that_arrives_late(
    client: Client, target: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives after the new run has read the target: before or after the first append of the new run."""
    append_many = Stream.append_many
    size = 2 if target.content_type == "application/json" else 1

    def late(self: Stream, values: Any, **named: Any) -> Any:
        monkeypatch.setattr(Stream, "append_many", append_many)
        append_many(self, RECORDS[:size], seq=f"{0:020d}")
        return append_many(self, values, **named)

    monkeypatch.setattr(Stream, "append_many", late)
    write_back(target, content(target))
    assert whole(target) == b"".join(RECORDS)
    with pytest.raises(SequenceRegressionError):
        target.append_many(RECORDS[:size], seq=f"{0:020d}")


def test_other_content_is_refused(target: Stream) -> None:
    target.append(RECORDS[0])
    target.append(b"9" * 30)
    with pytest.raises(ReplayError, match=f"{target.path}: "):
        write_back(target, content(target))


def test_a_closed_target(target: Stream) -> None:
    write_back(target, content(target, 3))
    target.close()
    assert write_back(target, content(target, 3)) == (0, False)
    with pytest.raises(StreamClosedError):
        write_back(target, content(target))


def test_appends_are_repeated_with_their_original_sizes(client: Client) -> None:
    rows: list[dict[str, Any]] = [
        {"value": b"ab", "append_end": 4},
        {"value": b"cd", "append_end": 4},  # of a batch after the first row's
        {"value": b"e", "append_end": 5},
        {"value": b"f", "append_end": None},
        {"value": b"g", "append_end": None},
    ]
    target = client.stream(f"replayed/{next(_numbers)}")
    target.create(content_type="text/plain")
    write_back(target, Appends(iter(rows)))
    assert [int(record.offset.partition("_")[2]) for record in target.records()] == [0, 4, 5, 6]


def test_an_archive_that_was_started_again_in_the_same_table() -> None:
    def values(is_json: bool, *rows: tuple[int | None, bytes]) -> list[bytes]:
        places = [{"offset": "opaque", "position": number // 2} for number in range(len(rows))]
        repeated = iter(
            [{"order": order, "value": value, **place} for (order, value), place in zip(rows, places, strict=True)]
        )
        return [row["value"] for row in without_repeats(repeated, is_json=is_json)]

    assert values(True, (0, b"1"), (0, b"1"), (2, b"22"), (2, b"22"), (5, b"3")) == [b"1", b"22", b"3"]
    assert values(False, (0, b"abc"), (0, b"ab"), (2, b"cde"), (5, b"f"), (5, b"f")) == [b"abc", b"de", b"f"]
    assert values(True, (None, b"1"), (None, b"1"), (None, b"1")) == [b"1", b"1"]  # a server without byte positions


def noted(*lives: tuple[int, str | None], tail: int = 9) -> dict[tuple[str, int], Noted]:
    return {("a", life): Noted("a", str(life), "text/plain", f"{life}_{tail}", False, first) for life, first in lives}


def lives(*archived: int, noted: dict[tuple[str, int], Noted]) -> set[int]:
    return {*lives_of({("a", life) for life in archived}, noted)["a"]}


def test_the_last_archived_incarnation_is_written() -> None:
    for first in (None, "2_0"):
        assert lives(1, 2, noted=noted((1, None), (2, first))) == {2}
        assert lives(1, noted=noted((1, None), (2, first))) == {1}
    assert lives(1, noted=noted((1, None)) | noted((2, "2_0"), tail=0)) == {2}


def test_a_fork_is_written_with_what_it_has_from_its_source() -> None:
    assert lives(1, 5, noted=noted((5, None))) == {1, 5}
    assert lives(1, 5, noted=noted((1, None), (5, "1_0"))) == {1, 5}  # seen without its own
    assert lives(0, 1, 5, noted=noted((0, None), (5, "1_0"))) == {1, 5}


def test_a_fork_in_the_place_of_a_stream_that_is_younger_than_its_source() -> None:
    assert lives(1, 5, 9, noted=noted((5, "5_0"), (9, "1_0"))) == {1, 9}
    assert lives(1, 5, 9, noted=noted((1, "1_0"), (5, "5_0"), (9, "1_0"))) == {1, 9}


def test_a_stream_of_a_server_that_was_restored() -> None:
    assert lives(1, 7, noted=noted((1, "1_0"), (7, "1_0"))) == {1, 7}
    assert lives(1, 7, 9, noted=noted((1, "1_0"), (7, "1_0"), (9, "1_0"))) == {1, 7, 9}
    assert lives(1, 7, 9, noted=noted((1, "1_0"), (7, "1_0"), (9, "9_0"))) == {9}  # created again after the restore


def test_what_an_archive_lacks_is_told_for_all_streams(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = Lake(str(tmp_path / "raw"))
    faults = {"b": Faults(["its first 6 bytes", "bytes 8 to 9"]), "a": Faults(["bytes 1 to 2"]), "c": Faults()}
    message = "a lacks bytes 1 to 2, b lacks its first 6 bytes and 1 more gaps; nothing was written"
    with pytest.raises(IncompleteArchiveError, match=message):
        report(lake, faults, allow_gaps=False)
    report(lake, faults, allow_gaps=True)
    assert "b lacks its first 6 bytes" in caplog.text
    many = {f"s{number}": Faults(["bytes 1 to 2"]) for number in range(8)}
    with pytest.raises(IncompleteArchiveError, match="s4 lacks bytes 1 to 2 and 3 other streams; nothing"):
        report(lake, many, allow_gaps=False)
    for allow_gaps in (False, True):
        with pytest.raises(IncompleteArchiveError, match=r"two versions of a stream.*c has two rows"):
            report(lake, {**faults, "c": Faults(conflict="two rows with different data")}, allow_gaps=allow_gaps)
    report(lake, {"c": Faults()}, allow_gaps=False)


def test_rows_of_a_stream_that_the_table_of_streams_lacks(tmp_path: Path) -> None:
    check_noted(Lake(str(tmp_path)), {"a"}, {"a", "b"})
    with pytest.raises(IncompleteArchiveError, match=r"\.streams has no row of c, d"):
        check_noted(Lake(str(tmp_path)), {"a", "c", "d"}, {"a"})


def test_the_metadata_of_the_written_incarnation() -> None:
    def life(last: int | None, *lives: tuple[int, str | None]) -> int:
        return written({} if last is None else {"a": last}, noted(*lives))["a"].life

    assert life(1, (1, None), (2, "2_0")) == 1  # created again, and not read
    assert life(1, (1, None), (2, None)) == 1
    assert life(2, (1, None), (2, "2_0")) == 2
    assert life(1, (1, None), (5, "1_0")) == 5  # a fork that was read in one range with its source
    assert life(1, (5, None)) == 5
    assert life(None, (1, None), (2, None)) == 2  # nothing was read
