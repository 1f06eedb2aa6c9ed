"""A replay appends the data that the target lacks, once, and nothing if the content differs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from headwater import limits
from headwater.client import Client, Stream
from headwater.errors import NetworkError, ReplayError, SequenceRegressionError, StreamClosedError
from headwater.pipeline.replay import Appends, Life, Messages, Noted, lives_of, without_repeats, write_back, written
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
        given = iter([{"order": order, "value": value} for order, value in rows])
        return [row["value"] for row in without_repeats(given, is_json=is_json)]

    assert values(True, (0, b"1"), (0, b"1"), (2, b"22"), (2, b"22"), (5, b"3")) == [b"1", b"22", b"3"]
    assert values(False, (0, b"abc"), (0, b"ab"), (2, b"cde"), (5, b"f"), (5, b"f")) == [b"abc", b"de", b"f"]
    assert values(True, (None, b"1"), (None, b"1")) == [b"1", b"1"]  # a server without byte positions


def noted(*lives: tuple[int, str | None], tail: int = 9) -> dict[tuple[str, int], Noted]:
    return {("a", life): Noted("a", str(life), "text/plain", f"{life}_{tail}", False, first) for life, first in lives}


def test_the_last_archived_incarnation_is_written() -> None:
    for first in (None, "2_0"):
        assert lives_of({("a", 1): 0, ("a", 2): 0}, noted((1, None), (2, first))) == [Life("a", 2, None)]
        assert lives_of({("a", 1): 0}, noted((1, None), (2, first))) == [Life("a", 1, None)]
    assert lives_of({("a", 1): 0}, noted((1, None)) | noted((2, "2_0"), tail=0)) == [Life("a", 2, None)]


@pytest.mark.parametrize("first", [None, "2_0"])
def test_an_incarnation_whose_beginning_was_not_archived(first: str | None) -> None:
    with pytest.raises(ReplayError, match="a was created again, and the archive lacks its first 6 bytes"):
        lives_of({("a", 1): 0, ("a", 2): 6}, noted((1, None), (2, first)))
    assert lives_of({("a", 2): 6}, noted((2, first))) == [Life("a", 2, None)]  # it was begun later


def test_a_fork_is_written_with_what_it_has_from_its_source() -> None:
    own, source = Life("a", 5, None), Life("a", 1, 6)
    assert lives_of({("a", 1): 0, ("a", 5): 6}, noted((5, None))) == [own, source]
    assert lives_of({("a", 1): 0, ("a", 5): 6}, noted((1, None), (5, "1_0"))) == [own, source]  # seen without its own
    assert lives_of({("a", 0): 0, ("a", 1): 0, ("a", 5): 6}, noted((0, None), (5, "1_0"))) == [own, source]


def test_the_metadata_of_the_written_incarnation() -> None:
    def life(last: int | None, *lives: tuple[int, str | None]) -> int:
        return written({} if last is None else {"a": last}, noted(*lives))["a"].life

    assert life(1, (1, None), (2, "2_0")) == 1  # created again, and not read
    assert life(1, (1, None), (2, None)) == 1
    assert life(2, (1, None), (2, "2_0")) == 2
    assert life(1, (1, None), (5, "1_0")) == 5  # a fork that was read in one range with its source
    assert life(1, (5, None)) == 5
    assert life(None, (1, None), (2, None)) == 2  # nothing was read
