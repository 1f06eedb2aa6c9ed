"""The ranges of a batch of a table, and the check that the table was not replaced."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from headwater.client import Client, Table
from headwater.errors import DataLossError, OptionError
from headwater.spark.tables.options import table_read_options
from headwater.spark.tables.places import BEGINNING, RowPlace, from_json, to_json
from headwater.spark.tables.planning import TablePlanner
from tests.servers import Server
from tests.table_servers import head, hostile_server, lines

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_RECHECKS_S", (0.0,))


@pytest.fixture
def table(server: Server) -> Iterator[Table]:
    with Client(server.url) as client:
        table = client.table(f"planning/{next(_numbers)}")
        table.create()
        yield table


def fill(table: Table, count: int, word: str = "r") -> None:
    table.append([("+", f"k{n}", word) for n in range(count)])


@contextlib.contextmanager
def planner(url: str, *, bounded: bool = False, **texts: str) -> Iterator[TablePlanner]:
    options = table_read_options({"url": url, **texts}, bounded=bounded)
    with options.open(patient=False) as client:
        yield TablePlanner(options, client)


def ranges(plan: TablePlanner, start: RowPlace, end: RowPlace) -> list[tuple[int, int]]:
    return [(part.since, part.until) for part in plan.partitions(start, end)]


def test_equal_ranges_of_one_table(table: Table) -> None:
    fill(table, 10)
    with planner(table.url, minPartitions="4") as plan:
        end = plan.tail().place
        assert ranges(plan, BEGINNING, end) == [(0, 2), (2, 5), (5, 7), (7, 10)]
        assert ranges(plan, plan.place_at(9), end) == [(9, 10)]
        assert ranges(plan, end, end) == []
    with planner(table.url, maxPartitionRows="3") as plan:
        assert ranges(plan, BEGINNING, end) == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_places_survive_a_checkpoint(table: Table) -> None:
    fill(table, 3)
    with planner(table.url) as plan:
        for place in (BEGINNING, plan.place_at(2)):
            assert from_json(to_json(place)) == place
        assert plan.place_at(2) != plan.place_at(1)


def test_an_empty_table_and_one_that_grows(table: Table) -> None:
    with planner(table.url, maxRowsPerTrigger="4") as plan:
        tail = plan.tail()
        assert (tail.place, tail.gapless) == (BEGINNING, True)
        assert plan.advance(BEGINNING, tail, limited=True) == BEGINNING
        fill(table, 6)
        first = plan.advance(BEGINNING, plan.tail(), limited=True)
        assert first == plan.place_at(4)
        assert plan.advance(first, plan.tail(), limited=True) == plan.tail().place
        assert plan.advance(BEGINNING, plan.tail(), limited=False).seqno == 6
        assert plan.advance(RowPlace(6), plan.tail(), limited=True) == RowPlace(6)


def test_where_to_start_and_end(table: Table) -> None:
    fill(table, 5)
    for texts, start, end in (({}, 0, 5), ({"startingSeqNo": "3", "endingSeqNo": "4"}, 2, 4)):
        with planner(table.url, bounded=True, **texts) as plan:
            assert (plan.start(plan.tail()).seqno, plan.end(plan.tail()).seqno) == (start, end)
    with planner(table.url, bounded=True, startingSeqNo="latest") as plan:
        assert plan.start(plan.tail()) == plan.tail().place
    with planner(table.url, bounded=True, startingSeqNo="7", endingSeqNo="6") as plan:
        with pytest.raises(OptionError, match="startingSeqNo is 7, but the table ends at row 5"):
            plan.start(plan.tail())
        with pytest.raises(OptionError, match="endingSeqNo is 6, but the table ends at row 5"):
            plan.end(plan.tail())


@pytest.mark.parametrize("rows", [0, 3, 5, 9])
def test_a_table_that_was_created_again(table: Table, rows: int) -> None:
    """With fewer, as many, and more rows than were read."""
    fill(table, 5)
    with planner(table.url) as plan, planner(table.url, failOnDataLoss="false") as lenient:
        read = plan.tail().place
        table.delete()
        table.create()
        if rows:
            fill(table, rows)
        tail = plan.tail()
        with pytest.raises(DataLossError, match="was replaced after it was read up to row 5"):
            plan.advance(read, tail, limited=True)
        with pytest.raises(DataLossError):
            plan.partitions(read, tail.place)
        with pytest.raises(DataLossError, match="had rows up to row 5"):
            plan.partitions(BEGINNING, read)
        assert lenient.advance(read, tail, limited=True) == tail.place
        assert ranges(lenient, read, tail.place) == ([(0, rows)] if rows else [])
        assert ranges(lenient, BEGINNING, read) == []


def test_a_deleted_table(table: Table) -> None:
    fill(table, 5)
    with planner(table.url) as plan, planner(table.url, failOnDataLoss="false") as lenient:
        read = plan.tail().place
        table.delete()
        with pytest.raises(DataLossError, match="the table does not exist any more"):
            plan.find_tail()
        assert lenient.find_tail() is None
        assert lenient.partitions(BEGINNING, read) == []


# Other servers


def foreign(*seqnos: int, **headers: str):  # type: ignore[no-untyped-def]
    """A server that supports only `since_id`."""

    def script(_: int, path: str) -> Iterator[bytes]:
        since_id = int(path.partition("since_id=")[2].partition("&")[0])
        wanted = seqnos[since_id:] if since_id < 0 else [seqno for seqno in seqnos if seqno > since_id]
        yield head(**headers)
        yield lines(*wanted)

    return hostile_server(script)


def test_a_table_with_gaps_is_one_task_unless_more_are_asked_for() -> None:
    with foreign(10, 500, 10**15) as other:
        with planner(f"{other.url}/prices", maxPartitionRows="2") as plan:
            tail = plan.tail()
            assert (tail.place.seqno, tail.gapless) == (10**15, False)
            assert ranges(plan, BEGINNING, tail.place) == [(0, 10**15)]
        with planner(f"{other.url}/prices", minPartitions="2") as plan:
            assert ranges(plan, BEGINNING, tail.place) == [(0, 10**15 // 2), (10**15 // 2, 10**15)]


def test_rows_of_a_table_with_gaps_are_counted() -> None:
    with (
        foreign(10, 500, 700, 10**15, STP_Last_SeqNo=str(10**15)) as other,
        planner(f"{other.url}/prices", maxRowsPerTrigger="2") as plan,
    ):
        tail = plan.tail()
        places = [BEGINNING]
        for _ in range(3):
            places.append(plan.advance(places[-1], tail, limited=True))
        assert [place.seqno for place in places] == [0, 500, 10**15, 10**15]


def test_a_compacted_row_is_not_a_loss_in_a_table_with_gaps() -> None:
    read = RowPlace(500, "0123456789abcdef")
    with foreign(10, 600) as other, planner(f"{other.url}/prices") as plan:
        assert plan.advance(read, plan.tail(), limited=True).seqno == 600
    with foreign(1, 2, STP_Gapless="true") as other, planner(f"{other.url}/prices") as plan:
        with pytest.raises(DataLossError):
            plan.advance(RowPlace(3, "0123456789abcdef"), plan.tail(), limited=True)


def test_a_lagging_replica_is_not_a_data_loss() -> None:
    def script(number: int, _: str) -> Iterator[bytes]:
        yield head() + lines(1 if number < 1 else 3)

    with hostile_server(script) as other, planner(f"{other.url}/prices") as plan:
        assert plan.advance(RowPlace(2), plan.tail(), limited=True) == RowPlace(2)
        assert plan.advance(RowPlace(2), plan.tail(), limited=True).seqno == 3
