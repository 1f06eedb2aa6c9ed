"""Rows that are missing in an archive are found, whatever the rows, and so are two versions of the same data."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from headwater.pipeline.archiving import Gap, gaps_of, linked
from headwater.pipeline.continuity import CONTINUES_AT, Faults, faults_of
from headwater.pipeline.replaying import without_repeats
from headwater.spark.positions import StreamPlace

KINDS = [True, False]  # JSON, or bytes


def rows_of(values: list[bytes], *, is_json: bool, begin: int = 0, offset: str = "7_0") -> list[dict[str, Any]]:
    """The rows that a server that counts bytes gives: a JSON message takes a byte more than its text."""
    rows = []
    for number, value in enumerate(values):
        rows.append({"offset": offset, "position": number, "order": begin, "value": value})
        begin += len(value) + (1 if is_json else 0)
    return rows


def values_of(chance: random.Random) -> list[bytes]:
    return [b"1" * chance.randint(1, 9) for _ in range(chance.randint(2, 12))]


def end_of(rows: list[dict[str, Any]], *, is_json: bool) -> int:
    return int(rows[-1]["order"]) + len(rows[-1]["value"]) + (1 if is_json else 0)


@pytest.mark.parametrize("is_json", KINDS)
@pytest.mark.parametrize("seed", range(50))
def test_any_missing_row_is_found(seed: int, is_json: bool) -> None:
    chance = random.Random(seed)
    rows = rows_of(values_of(chance), is_json=is_json)
    tail = f"7_{end_of(rows, is_json=is_json)}"
    assert faults_of(rows, is_json=is_json, tail=tail) == Faults()
    twice = sorted([*rows, *chance.sample(rows, 2)], key=lambda row: row["order"])
    assert faults_of(twice, is_json=is_json, tail=tail) == Faults()
    for missing in range(len(rows)):
        left = rows[:missing] + rows[missing + 1 :]
        faults = faults_of(left, is_json=is_json, tail=tail)
        assert faults.conflict is None
        begin, end = rows[missing]["order"], tail if missing == len(left) else rows[missing + 1]["order"]
        end = int(str(end).rpartition("_")[2])
        assert faults.gaps == [f"bytes {begin} to {end}" if begin else f"its first {end} bytes"]


def test_rows_of_a_snapshot_stand_for_data_that_is_missing() -> None:
    snapshot = [{"offset": "7_40", "position": place, "order": 39, "value": b"s%d" % place} for place in (3, 9)]
    before, after = rows_of([b"1", b"22"], is_json=True), rows_of([b"3", b"4"], is_json=True, begin=40, offset="7_40")
    tail = f"7_{end_of(after, is_json=True)}"
    rows = [*before, *snapshot, *after]
    gap = "of which it has only the state after them"
    assert faults_of(rows, is_json=True, tail=tail) == Faults([f"bytes 5 to 40, {gap}"])
    assert faults_of([*snapshot, *after], is_json=True, tail=tail) == Faults([f"its first 40 bytes, {gap}"])
    written = without_repeats(iter([*before, snapshot[0], snapshot[0], snapshot[1], *after]), is_json=True)
    assert [row["value"] for row in written] == [b"1", b"22", b"s3", b"s9", b"3", b"4"]


def test_a_snapshot_of_data_that_is_there_is_left_out() -> None:
    """The stream was archived, and again with another checkpoint after it was compacted."""
    rows = rows_of([b"1" * 19, b"2" * 19, b"3"], is_json=True)
    snapshot = {"offset": "7_40", "position": 3, "order": 39, "value": b"s"}
    both = [*rows[:2], snapshot, {**snapshot, "position": 5}, rows[2]]
    assert faults_of(both, is_json=True, tail="7_42") == Faults()
    assert [row["value"] for row in without_repeats(iter(both), is_json=True)] == [row["value"] for row in rows]


def test_what_a_batch_could_not_read() -> None:
    starts = {"same": StreamPlace("7_10"), "behind": StreamPlace("7_10"), "again": StreamPlace("7_10")}
    firsts = [{"same": "7_10", "behind": "7_30", "again": "8_20"}, {"behind": "7_20", "new": "7_0", "late": "7_5"}]
    assert gaps_of(starts, firsts) == {"behind": Gap("7_10", "7_20"), "late": Gap("-1", "7_5")}


def test_a_missing_end_is_only_known_of_a_closed_stream() -> None:
    rows = rows_of([b"1", b"22"], is_json=True)
    assert faults_of(rows[:1], is_json=True) == Faults()
    assert faults_of(rows[:1], is_json=True, tail="7_5") == Faults(["bytes 2 to 5"])
    assert faults_of([], is_json=True, tail="7_5") == Faults(["its first 5 bytes"])


def test_other_data_at_the_same_position() -> None:
    """As after a restore of the server, when the archive accepted the loss."""
    rows = rows_of([b"1", b"22", b"3"], is_json=True)
    for order, value in ((2, b"99"), (2, b"9"), (2, b"222"), (3, b"2"), (5, b"4")):
        other = {"offset": "7_0", "position": 1, "order": order, "value": value}
        mixed = sorted([*rows, other], key=lambda row: row["order"])
        assert faults_of(mixed, is_json=True).conflict is not None, (order, value)
    text = rows_of([b"abc", b"def"], is_json=False)
    for order, value in ((0, b"x"), (1, b"bcd!"), (2, b"cX"), (5, b"ff")):
        other = {"offset": "7_0", "position": 9, "order": order, "value": value}
        mixed = sorted([*text, other], key=lambda row: row["order"])
        conflict = faults_of(mixed, is_json=False).conflict
        assert (conflict is None) == (value == b"ff"), (order, value)  # the last one only continues


def test_bytes_that_were_archived_twice_in_other_pieces() -> None:
    text = bytes(range(100))
    for seed in range(50):
        chance = random.Random(seed)
        rows: list[dict[str, Any]] = []
        for _ in range(3):
            cuts = sorted({0, 100, *(chance.randrange(100) for _ in range(5))})
            rows += [
                {"offset": "7_0", "position": begin, "order": begin, "value": text[begin:end]}
                for begin, end in pairwise(cuts)
            ]
        rows.sort(key=lambda row: row["order"])
        assert faults_of(rows, is_json=False, tail="7_100") == Faults()
        rows[chance.randrange(len(rows))]["value"] = b"\xff" * 3
        assert faults_of(rows, is_json=False).conflict is not None


# Servers whose offsets do not count bytes


def archived(ranges: list[tuple[StreamPlace, list[bytes], StreamPlace]], *, is_json: bool) -> list[dict[str, Any]]:
    """The rows of batches: where each begins, its values, and where it ends. Tasks get them in small tables."""
    rows = []
    for start, values, end in ranges:
        position, batch_rows = start.skip, []
        for value in values:
            batch_rows.append(
                {"stream": "s", "offset": start.offset, "position": position, "order": None, "value": value}
            )
            position += 1 if is_json else len(value)
        tables = [pa.Table.from_pylist(batch_rows[at : at + 2]) for at in range(0, len(batch_rows), 2)]
        rows += [row for table in linked(tables, {"s": end}) for row in table.to_pylist()]
    return rows


@pytest.mark.parametrize("is_json", KINDS)
def test_any_missing_row_of_another_server_is_found(is_json: bool) -> None:
    middle = StreamPlace("b", 3 if is_json else 6)
    ranges = [
        (StreamPlace(), [b"1", b"22", b"3"], StreamPlace("a")),
        (StreamPlace("a"), [b"4"], StreamPlace("b")),
        (StreamPlace("b"), [b"1", b"22", b"333"], middle),  # a batch that a limit ends inside an append
        (middle, [b"5", b"6"], StreamPlace("c", ended=True)),
    ]
    rows = archived(ranges, is_json=is_json)
    assert [row[CONTINUES_AT] for row in rows] == ["", "", "a", "b", "", "", str(middle), "", "c ended"]
    assert faults_of(rows, is_json=is_json, tail="c") == Faults()
    doubled = [row for row in rows for _ in range(2)]
    assert faults_of(doubled, is_json=is_json, tail="c") == Faults()
    for missing in range(len(rows)):
        faults = faults_of(rows[:missing] + rows[missing + 1 :], is_json=is_json, tail="c")
        assert (len(faults.gaps), faults.conflict) == (1, None), missing
    doubled[1] = {**doubled[1], "value": b"other"}
    assert faults_of(doubled, is_json=is_json).conflict is not None


def test_the_rows_of_many_streams_in_one_task() -> None:
    rows = [{"stream": stream, "n": n} for stream in "abc" for n in range(3)]
    ends = {"a": StreamPlace("x"), "b": StreamPlace("y", 2), "c": StreamPlace("z")}
    for size in (1, 2, 3, 4, 9):
        tables = [pa.Table.from_pylist(rows[at : at + size]) for at in range(0, 9, size)]
        batch_rows = [row for table in linked(tables, ends) for row in table.to_pylist()]
        assert [row[CONTINUES_AT] for row in batch_rows] == ["", "", "x", "", "", "y+2", "", "", "z"]
        assert [{"stream": row["stream"], "n": row["n"]} for row in batch_rows] == rows
    assert list(linked([], ends)) == []
    assert [table[CONTINUES_AT].to_pylist() for table in linked([pa.Table.from_pylist(rows)], None)] == [[None] * 9]
