"""Following a table: every row once and in order, or an error, for any responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import errors, limits
from headwater.protocol.tables import following as following_module
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.following import TableFollowing
from headwater.protocol.tables.row_window import RowWindow
from headwater.protocol.tables.rows import Row, format_row

TYPE = "text/sequence; charset=utf-8; schema=prices; version=1"
ATTEMPTS = 6


def row(seqno: int, record: str = "r") -> Row:
    return Row(seqno, "2026-01-08T00:00:00Z", "+", f"k{seqno}", record)


def body(*rows: Row | int) -> bytes:
    return b"".join(format_row(row(one) if isinstance(one, int) else one) for one in rows)


def headers(*, last: int | None = None, gapless: bool = False, content_type: str = TYPE, **more: str) -> dict[str, str]:
    fields = {"content-type": content_type, **more}
    if last is not None:
        fields["stp-last-seqno"] = str(last)
    if gapless:
        fields["stp-gapless"] = "true"
    return fields


FIRST_IS_50: dict[str, Any] = {"stp-first-seqno": "50"}


def answer(following: TableFollowing, data: bytes, *, piece: int = 1 << 20, **more: Any) -> list[int]:
    """The SeqNos of the new rows of a response. Raises final errors, and ignores those that are retried."""
    rows: list[Row] = []
    try:
        following.begin(headers(**more))
        for start in range(0, len(data), piece):
            rows += following.feed(data[start : start + piece])
            if following.is_done():
                break
        rows += following.end()
        following.finish()
    except errors.HeadwaterError as error:
        following.failed(error, ATTEMPTS)
    return [one.seqno for one in rows]


def has_ended(following: TableFollowing) -> bool:
    """As a call: a type checker believes that an attribute which was False stays so."""
    return following.ended


def ask_again(following: TableFollowing, data: bytes, *, gapless: bool = False) -> None:
    """Repeat the same response without new rows, as often as a follower retries."""
    for _ in range(limits.FOLLOW_TRIES_MAX):
        assert answer(following, data, gapless=gapless) == []


def test_repeats_and_overlaps_are_dropped() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 2, 2, 1, 3)) == [1, 2, 3]
    assert following.since_id == 2
    assert answer(following, body(1, 2, 3, 4)) == [4]
    assert answer(following, body(4, 9)) == [9]


def test_an_incomplete_line_is_requested_again() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 2)[:-5]) == [1]
    assert following.since_id == 0  # request row 1 again, to compare it
    assert answer(following, body(1, 2)) == [2]
    with pytest.raises(errors.InvalidRowError, match="ends within a row"):
        ask_again(following, body(3)[:-1])
    assert following.position == 2


def test_a_response_may_be_abandoned_at_any_point() -> None:
    following = TableFollowing()
    following.begin(headers())
    assert [one.seqno for one in following.feed(body(1, 2)[:-5])] == [1]
    assert following.since_id == 0
    assert answer(following, body(1, 2, 3)) == [2, 3]


def test_a_missing_row_is_requested_again_and_never_skipped() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 2, 4, 5), gapless=True) == [1, 2]
    assert answer(following, body(2, 4), gapless=True) == []
    assert answer(following, body(2, 3, 4), gapless=True) == [3, 4]
    with pytest.raises(errors.MissingRowError, match="row 5 is missing"):
        ask_again(following, body(6), gapless=True)
    assert following.position == 4


def test_gaps_are_allowed_without_a_promise() -> None:
    assert answer(TableFollowing(), body(3, 7, 70)) == [3, 7, 70]
    assert answer(TableFollowing(gaps=True), body(3, 7), gapless=True) == [3, 7]


@pytest.mark.parametrize("gapless", [True, False])
@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("last", [None, 3])
def test_rows_of_one_piece_are_sorted(gapless: bool, snapshot: bool, last: int | None) -> None:
    following = TableFollowing(snapshot=snapshot)
    assert answer(following, body(3, 1, 2), gapless=gapless, last=last) == [1, 2, 3]
    assert following.ended == snapshot


@pytest.mark.parametrize("piece", [1, 7, 31, 40])
def test_a_snapshot_sorts_a_whole_response(piece: int) -> None:
    for last in (None, 9):
        assert answer(TableFollowing(snapshot=True), body(9, 4, 2, 7), piece=piece, last=last) == [2, 4, 7, 9]
    assert answer(TableFollowing(-2, snapshot=True), body(9, 8), piece=piece, last=9) == [8, 9]
    assert answer(TableFollowing(snapshot=True, until_id=4), body(9, 4, 2, 7), piece=piece, last=9) == [2, 4]


@pytest.mark.parametrize("snapshot", [False, True])
def test_of_a_compacted_table_the_rows_before_the_first_complete_one_are_taken(snapshot: bool) -> None:
    """`STP-First-SeqNo` is the first one from which nothing is missing. The last rows of live keys are before it."""
    data = body(6, 56, 60)
    assert answer(TableFollowing(snapshot=snapshot), data, last=60, **FIRST_IS_50) == [6, 56, 60]
    following = TableFollowing(snapshot=True, gaps=True)
    assert answer(following, data, last=60, gapless=True, **FIRST_IS_50) == [6, 56, 60]


@pytest.mark.parametrize("gapless", [False, True])
def test_a_trimmed_table_is_read_from_its_first_row_or_is_empty(gapless: bool) -> None:
    following = TableFollowing()
    assert answer(following, b"", last=49, gapless=gapless, **FIRST_IS_50) == []
    assert following.position == 49
    assert answer(following, body(50, 51), last=51, gapless=gapless, **FIRST_IS_50) == [50, 51]
    assert answer(TableFollowing(), body(50, 51), last=51, gapless=gapless, **FIRST_IS_50) == [50, 51]


def test_rows_up_to_the_announced_last_one_are_sorted_over_pieces() -> None:
    following = TableFollowing()
    following.begin(headers(last=5))
    assert following.feed(body(4)) == following.feed(body(2)) == []
    assert [one.seqno for one in following.feed(body(1))] == [1, 2]  # without a gap: at once
    assert [one.seqno for one in following.feed(body(5))] == [4, 5]
    assert [one.seqno for one in following.feed(body(9))] == [9]  # a live row does not wait
    following.feed(body(7))
    with pytest.raises(errors.RowOrderError, match="row 7 came after row 9"):
        following.finish()


def test_a_row_that_comes_too_late_is_an_error_however_long_ago_its_seqno_was_skipped() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 3)) == [1, 3]
    many = range(4, limits.FOLLOW_ROWS_REMEMBERED + 10)
    assert answer(following, body(*many)) == [*many]
    assert answer(following, body(1, 3)) == []
    with pytest.raises(errors.HistoryChangedError, match="row 2 was not there"):
        answer(following, body(2))


def test_the_rows_that_are_held_back_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "RowWindow", lambda: RowWindow(rows_max=10))
    following = TableFollowing(snapshot=True)
    following.begin(headers())
    taken = following.feed(body(*range(100, 0, -1)))
    assert [one.seqno for one in taken] == [*range(90, 101)]
    with pytest.raises(errors.RowOrderError):
        following.finish()
    large = RowWindow(bytes_max=1_000)
    large.add(row(1, "x" * 900))
    assert not large.is_full
    large.add(row(2, "x" * 900))
    assert large.is_full


def test_a_snapshot_stops_in_a_response_that_goes_on_beyond_its_target() -> None:
    following = TableFollowing(snapshot=True, until_id=3)
    following.begin(headers(last=9))
    taken, seqno = following.feed(body(1, 2)), 4
    while not following.is_done():
        taken += following.feed(body(row(seqno, "x" * 900_000)))
        seqno += 1
    assert ([one.seqno for one in taken], has_ended(following)) == ([1, 2], True)
    assert seqno * 900_000 < limits.FOLLOW_WINDOW_BYTES_MAX + 10_000_000


def test_held_rows_of_a_response_that_is_cut_off_are_requested_again() -> None:
    following = TableFollowing(snapshot=True)
    assert answer(following, body(1, 3, 5)[:-4], last=5) == [1]
    assert answer(following, body(1, 5, 3), last=5) == [3, 5]
    assert following.ended


def test_two_rows_with_one_seqno_while_they_are_held_back() -> None:
    with pytest.raises(errors.HistoryChangedError, match="twice"):
        answer(TableFollowing(snapshot=True), body(3, row(3, "other")))
    assert answer(TableFollowing(snapshot=True), body(3, 3, 1)) == [1, 3]


def test_another_row_under_the_same_seqno() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 2)) == [1, 2]
    with pytest.raises(errors.HistoryChangedError, match="row 2 differs from the row"):
        answer(following, body(row(2, "other"), 3))
    assert following.position == 2


def test_a_row_that_appears_before_the_position() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 5)) == [1, 5]
    with pytest.raises(errors.HistoryChangedError, match="row 3 was not there"):
        answer(following, body(3, 6))


def test_a_table_that_restarts_its_numbering() -> None:
    following = TableFollowing()
    assert answer(following, body(1, 2, 3), last=3) == [1, 2, 3]
    for _ in range(limits.FOLLOW_TRIES_MAX - 1):
        assert answer(following, b"", last=1) == []
    with pytest.raises(errors.HistoryChangedError, match="ends with row 1"):
        answer(following, b"", last=1)


def test_a_stale_replica_is_requested_again() -> None:
    following = TableFollowing()
    answer(following, body(1, 2, 3), last=3)
    assert answer(following, b"", last=2) == []
    assert answer(following, body(4), last=4) == [4]


def test_a_stale_replica_next_to_a_current_one_does_not_stop_a_follower() -> None:
    """A follower runs for months, so failures that were followed by valid responses must not add up."""
    following = TableFollowing()
    answer(following, body(1, 2, 3), last=3)
    for _ in range(3 * limits.FOLLOW_TRIES_MAX):
        assert answer(following, b"", last=2) == []
        assert answer(following, b"", last=3) == []
    assert not following.ended


def test_a_table_that_was_created_again_with_more_rows_is_noticed() -> None:
    """The deletion looks like any other end of a response. The next request must not take rows of the new table."""
    following = TableFollowing()
    assert answer(following, body(1, 2, 3), last=3) == [1, 2, 3]
    assert following.since_id == 2
    with pytest.raises(errors.HistoryChangedError):
        answer(following, body(row(3, "made again"), 4), last=4)
    assert following.position == 3


def test_a_server_may_hold_a_request_until_there_is_a_row() -> None:
    def ask(*rows: int, elapsed_s: float = 0.0) -> tuple[int, float]:
        since_id = following.since_id
        following.begin(headers())
        following.feed(body(*rows))
        return since_id, following.finish(elapsed_s)

    following = TableFollowing()
    assert ask(1, 2) == (0, 0.0)
    assert ask(2) == (1, 0.0)  # ended at once, because row 2 was requested again
    assert ask(3, elapsed_s=20.0) == (2, 0.0)
    assert ask(3, 4) == (2, 0.0)
    assert ask(4) == (3, 0.0)
    assert ask() == (4, limits.FOLLOW_POLL_S)  # it does not hold requests
    assert ask(4) == (3, 2 * limits.FOLLOW_POLL_S)


def test_a_follower_that_knows_its_last_row_checks_it_first() -> None:
    following = TableFollowing(last_row=row(7))
    assert (following.position, following.since_id) == (7, 6)
    with pytest.raises(errors.HistoryChangedError):
        answer(following, body(row(7, "other")))


def test_rows_that_were_taken_long_ago_count_as_repeats() -> None:
    following = TableFollowing()
    many = range(1, limits.FOLLOW_ROWS_REMEMBERED + 10)
    assert answer(following, body(*many)) == [*many]
    assert answer(following, body(row(1, "other"), *many[5:], many[-1] + 1)) == [many[-1] + 1]


def test_schema_and_content_type() -> None:
    following = TableFollowing()
    answer(following, body(1))
    with pytest.raises(errors.SchemaChangedError, match=r"version=1 and is .*version=2"):
        answer(following, body(2), content_type=TYPE.replace("version=1", "version=2"))
    with pytest.raises(errors.SchemaChangedError):
        answer(TableFollowing(table=TableType("other", 1)), body(1))
    with pytest.raises(errors.ProtocolError, match="Content-Type of a table is"):
        answer(TableFollowing(), body(1), content_type="text/html")


def test_an_invalid_row_and_a_line_without_end() -> None:
    following = TableFollowing()
    following.begin(headers())
    assert [one.seqno for one in following.feed(body(1) + b"nonsense\n" + body(2))] == [1]
    with pytest.raises(errors.InvalidRowError, match="line 2"):
        following.finish()
    following.begin(headers())
    fed = 0
    while not following.is_done():
        assert following.feed(b"x" * 65_536) == []
        fed += 65_536
    assert fed <= limits.ROW_BYTES_MAX + 65_536
    with pytest.raises(errors.InvalidRowError, match="longer than"):
        following.finish()


def test_an_endless_body_of_repeats() -> None:
    following = TableFollowing(repeated_bytes_max=10_000)
    following.begin(headers())
    assert following.feed(body(1, 2))
    for _ in range(1_000):
        if following.is_done():
            break
        assert following.feed(body(1, 2)) == []
    with pytest.raises(errors.ProtocolError, match="had no new row"):
        following.finish()


def test_the_last_rows() -> None:
    following = TableFollowing(-2)
    assert following.since_id == -2
    assert answer(following, body(8, 9), gapless=True, last=9) == [8, 9]
    assert following.since_id == 8
    empty = TableFollowing(-2)
    assert answer(empty, b"", last=0) == []
    assert empty.since_id == 0
    unknown = TableFollowing(-2)
    assert answer(unknown, b"") == []
    assert unknown.since_id == -2


def test_a_snapshot_ends_with_the_rows_that_were_there() -> None:
    following = TableFollowing(snapshot=True)
    assert answer(following, body(1, 2), last=3) == [1, 2]
    assert not has_ended(following)
    assert answer(following, body(3, 4), last=4) == [3]
    assert has_ended(following)
    bounded = TableFollowing(until_id=2, snapshot=True)
    assert answer(bounded, body(1, 2, 3), last=3) == [1, 2]
    assert bounded.ended
    unnamed = TableFollowing(snapshot=True)
    assert answer(unnamed, body(1, 2)) == [1, 2]
    assert unnamed.ended
    beyond = TableFollowing(100, snapshot=True)
    assert answer(beyond, b"", last=3) == []
    assert beyond.ended
    deleted = TableFollowing(snapshot=True)  # the last rows were deleted
    assert answer(deleted, body(1, 2), last=9) == [1, 2]
    assert answer(deleted, b"", last=9) == []
    assert deleted.ended


def test_a_closed_table_ends() -> None:
    following = TableFollowing()
    closed: dict[str, Any] = {"stream-closed": "true"}
    assert answer(following, body(1), last=2, **closed) == [1]
    assert not has_ended(following)
    assert answer(following, body(2), last=2, **closed) == [2]
    assert has_ended(following)


def test_a_server_that_does_not_hold_requests_is_polled_less_and_less_often() -> None:
    following = TableFollowing()

    def wait(data: bytes, elapsed_s: float) -> float:
        following.begin(headers())
        following.feed(data)
        return following.finish(elapsed_s)

    waits = [wait(b"", 0.01) for _ in range(10)]
    assert waits[0] == limits.FOLLOW_POLL_S
    assert waits == sorted(waits)
    assert waits[-1] == limits.FOLLOW_POLL_MAX_S
    assert wait(b"", 30.0) == 0.0
    assert wait(body(1), 0.0) == 0.0


def test_failures_before_and_after_the_first_response() -> None:
    following = TableFollowing()
    for _ in range(ATTEMPTS - 1):
        following.failed(errors.NetworkError("lost"), ATTEMPTS)
    with pytest.raises(errors.NetworkError):
        following.failed(errors.NetworkError("lost"), ATTEMPTS)
    answer(following, body(1))
    assert [following.failed(errors.NetworkError("lost"), ATTEMPTS) for _ in range(20)][-1] == 20
    with pytest.raises(errors.StreamNotFoundError):
        following.failed(errors.StreamNotFoundError(), ATTEMPTS)


# Random responses, cuts and faults


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], bool]:
    gapless = draw(st.booleans())
    steps = draw(st.lists(st.just(1) if gapless else st.integers(1, 5), min_size=1, max_size=20))
    seqnos = [sum(steps[: end + 1]) for end in range(len(steps))]
    return [row(seqno, draw(st.text("ab ", max_size=3))) for seqno in seqnos], gapless


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_each_row_arrives_once_and_in_order_over_a_bad_network(
    table: tuple[list[Row], bool], data: st.DataObject
) -> None:
    """Responses overlap, repeat rows and are cut anywhere, but are valid: all rows arrive, without an error."""
    rows, gapless = table
    following = TableFollowing()
    taken: list[Row] = []
    for turn in range(200):
        if following.position == rows[-1].seqno:
            break
        lying_behind = data.draw(st.integers(0, 5)) if turn < 20 else 0
        begin = max(0, following.since_id - lying_behind)
        served: list[Row] = []
        for one in rows:
            if one.seqno > begin:
                served += [one] * (data.draw(st.integers(1, 2)) if turn < 20 else 1)
        text = body(*served)
        whole = turn >= 20 or data.draw(st.booleans())
        end = len(text) if whole else data.draw(st.integers(0, len(text)))
        try:
            following.begin(headers(gapless=gapless, last=rows[-1].seqno))
            piece = data.draw(st.integers(1, 100))
            for start in range(0, end, piece):
                taken += following.feed(text[start : min(end, start + piece)])
            if whole:
                following.finish()
            else:
                raise errors.NetworkError("lost")
        except errors.HeadwaterError as error:
            following.failed(error, ATTEMPTS)
    assert taken == rows


@settings(max_examples=300, deadline=None)
@given(tables(), st.data())
def test_any_server_gives_each_row_once_and_in_order_or_an_error(
    table: tuple[list[Row], bool], data: st.DataObject
) -> None:
    """Rows are removed, moved, repeated and replaced at random. Delivered rows are always in order and never repeated,
    and have no gap if the server promises gapless SeqNos."""
    rows, gapless = table
    following = TableFollowing()
    taken: list[Row] = []
    for _ in range(data.draw(st.integers(1, 8))):
        served = data.draw(st.lists(st.sampled_from(rows), max_size=30))
        changed = data.draw(st.integers(0, 9)) == 0
        text = body(*(row(one.seqno, "changed") if changed else one for one in served))
        try:
            following.begin(headers(gapless=gapless))
            taken += following.feed(text[: data.draw(st.integers(0, len(text)))])
            following.finish()
        except errors.HeadwaterError as error:
            try:
                following.failed(error, ATTEMPTS)
            except errors.ProtocolError:
                break
    seqnos = [one.seqno for one in taken]
    assert seqnos == sorted(set(seqnos))
    if gapless:
        assert seqnos == [*range(1, len(seqnos) + 1)]
