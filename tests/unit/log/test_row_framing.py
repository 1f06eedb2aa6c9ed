"""How a table stores its rows, and decisions on appends to it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ConfigurationError, InvalidForkError, SeqNoRegressionError, StreamClosedError
from headwater.log.commands import Append, Create, ForkRequest, Reply
from headwater.log.content import ContentKind
from headwater.log.producers import ProducerTuple
from headwater.log.row_framing import (
    check_order,
    format_rows,
    format_timestamp,
    last_seqno_of,
    position_after,
    seqno_of,
)
from headwater.log.state import StreamState, evolve
from tests.unit.log.world import World

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"


def table(kind: ContentKind = ContentKind.ROWS, **more: object) -> World:
    world = World()
    world.run(Create(path="t", now_ms=1_000, stream_id=1, content_type=TYPE, kind=kind, **more))  # type: ignore[arg-type]
    return world


def state_of(world: World) -> StreamState:
    state = world.at("t")
    assert state is not None
    return state


def append(world: World, body: bytes, now_ms: int = 2_000, **more: object) -> Reply:
    return world.run(Append("t", now_ms, body, TYPE, **more))  # type: ignore[arg-type]


def contents(world: World) -> bytes:
    return world.bytes_of(state_of(world))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-3_000, 3_000)), max_size=12),
)
def test_seqnos_have_no_gaps_and_timestamps_never_decrease(batches: list[tuple[int, int]]) -> None:
    world = table()
    now_ms, number = 10_000, 0
    for count, step_ms in batches:
        now_ms += step_ms
        changes = [b"+\tk%d\tr" % n for n in range(count)]
        number += count
        assert append(world, b"\n".join(changes), now_ms).last_seqno == number
    rows = contents(world).splitlines()
    assert [int(row.split(b"\t")[0]) for row in rows] == list(range(1, number + 1))
    times = [row.split(b"\t")[1] for row in rows]
    assert times == sorted(times)
    assert state_of(world).last_seqno == number
    replayed = None
    for event in world.history:
        replayed = evolve(replayed, event)  # type: ignore[arg-type]
    assert replayed == state_of(world)


def test_a_row_is_the_change_with_its_seqno_and_time_before_it() -> None:
    world = table()
    append(world, b"+\ta\tone\n-\tb\t\n", 1_767_830_400_123)
    assert contents(world) == b"1\t2026-01-08T00:00:00.123Z\t+\ta\tone\n2\t2026-01-08T00:00:00.123Z\t-\tb\t\n"


def test_a_table_can_begin_with_rows() -> None:
    world = table(body=b"+\ta\tone\n+\tb\ttwo")
    assert state_of(world).last_seqno == 2
    assert append(world, b"-\ta\t").last_seqno == 3
    assert contents(world).startswith(b"1\t1970-01-01T00:00:01.000Z\t+\ta\tone\n2\t")


def test_the_reply_to_a_close_and_a_retry_has_the_last_seqno() -> None:
    world = table()
    producer = ProducerTuple("p", 0, 0)
    assert append(world, b"+\ta\tone", producer=producer).last_seqno == 1
    again = append(world, b"+\ta\tone", producer=producer)
    assert (again.duplicate, again.last_seqno) == (True, 1)
    assert append(world, b"", close=True).last_seqno == 1
    assert append(world, b"", close=True).last_seqno == 1
    with pytest.raises(StreamClosedError):
        append(world, b"+\ta\ttwo")


def test_a_repeated_create_needs_the_same_schema_version_and_kind() -> None:
    world = table()
    same = {"path": "t", "now_ms": 3_000, "content_type": TYPE, "kind": ContentKind.ROWS}
    assert world.run(Create(**same)).existed  # type: ignore[arg-type]
    for other in ({"content_type": TYPE.replace("=1", "=2")}, {"kind": ContentKind.MIRROR}):
        with pytest.raises(ConfigurationError):
            world.run(Create(**{**same, **other}))  # type: ignore[arg-type]


def test_a_stream_with_the_content_type_of_a_table_is_not_a_table() -> None:
    world = World()
    world.run(Create(path="t", now_ms=1_000, stream_id=1, content_type=TYPE))
    append(world, b"+\ta\tone\n")
    assert (state_of(world).kind, contents(world)) == (ContentKind.TEXT, b"+\ta\tone\n")


def test_a_fork_of_a_table_must_be_a_table() -> None:
    world = table(body=b"+\ta\tone\n+\tb\ttwo")
    with pytest.raises(InvalidForkError):
        world.run(Create(path="f", now_ms=3_000, stream_id=2, fork=ForkRequest("t")))
    reply = world.run(
        Create(path="f", now_ms=3_000, stream_id=2, kind=ContentKind.ROWS, fork=ForkRequest("t"), body=b"+\tc\t3")
    )
    fork = world.at("f")
    assert fork is not None
    assert (reply.last_seqno, fork.last_seqno, fork.kind) == (3, 3, ContentKind.ROWS)
    assert world.bytes_of(fork).startswith(contents(world) + b"3\t")


def test_a_mirror_keeps_rows_as_they_are() -> None:
    world = table(ContentKind.MIRROR)
    rows = b"7\t2026-01-08T00:00:00Z\t+\ta\tone\ttab\n9\tx\t-\ta\t\n"
    assert append(world, rows).last_seqno == 9
    assert contents(world) == rows


@pytest.mark.parametrize("rows", [b"7\tt\t+\ta\t\n", b"6\tt\t+\ta\t\n", b"8\tt\t+\ta\t\n8\tt\t+\ta\t\n", b"9\t\n8\t\n"])
def test_a_mirror_refuses_rows_out_of_order(rows: bytes) -> None:
    world = table(ContentKind.MIRROR)
    append(world, b"7\tt\t+\ta\t\n")
    with pytest.raises(SeqNoRegressionError):
        append(world, rows)
    assert state_of(world).last_seqno == 7


def test_an_append_can_require_a_last_row() -> None:
    world = table(ContentKind.MIRROR)
    append(world, b"7\tt\t+\ta\t\n", last_seqno=0)
    for rows, close in ((b"9\tt\t+\ta\t\n", False), (b"", True)):
        for expected in (0, 6, 8):
            with pytest.raises(SeqNoRegressionError):
                append(world, rows, last_seqno=expected, close=close)
    assert append(world, b"9\tt\t+\ta\t\n", last_seqno=7).last_seqno == 9


@given(st.lists(st.integers(1, 60), unique=True, min_size=1), st.integers(0, 61))
def test_rows_are_found_by_binary_search(seqnos: list[int], seqno: int) -> None:
    lines = [b"%d\tt\t+\tk\t%b\n" % (n, b"r" * (n % 7)) for n in sorted(seqnos)]
    rows = b"".join(lines)
    at = position_after(rows, seqno)
    assert rows[at:] == b"".join(line for line in lines if seqno_of(line) > seqno)
    assert last_seqno_of(rows) == max(seqnos)


def test_timestamps() -> None:
    assert format_timestamp(0) == "1970-01-01T00:00:00.000Z"


@given(st.lists(st.binary(max_size=5).map(lambda data: data.replace(b"\n", b"")), min_size=1), st.integers(1, 10**12))
def test_formatting_many_rows_equals_formatting_each(changes: list[bytes], first: int) -> None:
    expected = [b"%d\tt\t%b\n" % (seqno, change) for seqno, change in enumerate(changes, first)]
    rows = format_rows(changes, first, "t")
    assert rows == b"".join(expected)
    assert (seqno_of(rows), last_seqno_of(rows)) == (first, first + len(changes) - 1)
    for seqno in (0, first - 1, first, first + len(changes) // 2, first + len(changes)):
        assert rows[position_after(rows, seqno) :] == b"".join(expected[max(0, seqno - first + 1) :])


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 9))
def test_the_order_of_rows_is_checked(seqnos: list[int], last_seqno: int) -> None:
    rows = b"".join(b"%d\tt\t+\tk\t\n" % seqno for seqno in seqnos)
    if all(one < other for one, other in itertools.pairwise([last_seqno, *seqnos])):
        assert check_order(rows, last_seqno) == seqnos[-1]
    else:
        with pytest.raises(SeqNoRegressionError):
            check_order(rows, last_seqno)
