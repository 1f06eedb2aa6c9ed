"""Batches on both paths into real tables, killed between some commits and started again, equal a naive fold."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.errors import BatchReusedError, CheckpointMismatchError, DataLossError, OptionError
from headwater.pipeline.checkpoints import hash_of_range
from headwater.pipeline.lake import Lake, TableBatch, TableFiles
from headwater.pipeline.materializing import applying, in_driver
from headwater.pipeline.materializing.applying import Applier
from headwater.pipeline.materializing.buckets import BucketResult, BucketWork, run_in_driver
from headwater.pipeline.materializing.cuts import BatchStart
from headwater.pipeline.materializing.layout import BUCKET, OTHER, TIME, Layout
from headwater.pipeline.materializing.settings import MaterializeSettings
from headwater.pipeline.materializing.tables import Tables, files_of, prepare, tables_at
from headwater.pipeline.upkeep import TableUpkeep
from tests.quick import quick
from tests.unit.pipeline.materializing.oracle import Event, comparable, current, history, table_rows

PAYLOAD = pa.schema([("key", pa.string()), ("value", pa.int64()), ("shade", pa.int64())])
GROWN = PAYLOAD.append(pa.field("extra", pa.int64()))
BUCKETS = 3


class KilledError(Exception):
    """The process ended here."""


class History:
    """Random events of two streams, in batches."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._lives = {"a": 10, "b": 20}
        self._orders = {"a": 0, "b": 0}
        self.events: list[Event] = []
        self.bad: list[tuple[str, int]] = []
        self.grows_at = chance.randint(1, 3)
        self._has_grown = False
        self.batches = []
        for number in range(chance.randint(4, 8)):
            self._has_grown = number >= self.grows_at
            self.batches.append(self._batch())

    def _batch(self) -> list[dict[str, Any]]:
        began = dict(self._orders)
        return [row for _ in range(self._chance.randint(1, 12)) for row in self._step(began)]

    def _step(self, began: dict[str, int]) -> list[dict[str, Any]]:
        chance = self._chance
        stream, happening = chance.choice("ab"), chance.random()
        if happening < 0.05 and self._orders[stream]:
            self._lives[stream] += chance.randint(100, 200)
            self._orders[stream] = began[stream] = 0
            self.events.append(Event(stream, self._lives[stream], 0, self._at + 1000, is_cut=True))
        at, order = self._at, self._orders[stream]
        place: dict[str, Any] = {"stream": stream, "incarnation": self._lives[stream], "order": order}
        row = {**place, "begin": began[stream], "type": "t", "updated_at": at, "offset": f"{place}"}
        self._orders[stream] += chance.randint(20, 90)
        if happening > 0.95:
            self.bad.append((stream, order))
            return [{**row, "type": None, "bad": "no event", "message": "{}"}]
        if happening > 0.88:
            self.events.append(Event(**place, at=at, is_cut=True))
            return [{**row, "type": None, "control": "reset"}]
        value = None if chance.random() < 0.25 else chance.randint(0, 999)
        fields: dict[str, Any] = {"key": chance.choice("klmn"), "value": value, "shade": chance.randint(0, 1)}
        if self._has_grown:
            fields["extra"] = chance.choice([None, 1, 2])
        sequence = chance.randint(0, 30)
        self.events.append(Event(**place, at=at, sequence=sequence, **fields))
        return [{**row, **fields, "sequence": sequence, "deleted": value is None}]

    @property
    def _at(self) -> int:
        return 1000 * len(self.events) + len(self.bad)


def prepared(rows: list[dict[str, Any]]) -> pa.Table:
    """The events with the columns that Spark prepares."""
    text = ("stream", "offset", "type", "key", "control", "bad", "message")
    numbers = ("incarnation", "begin", "order", "value", "shade", "extra", "sequence")
    columns = {
        BUCKET: pa.array([hash_of(row) for row in rows], pa.int32()),
        **{name: pa.array([row.get(name) for row in rows], pa.string()) for name in text},
        **{name: pa.array([row.get(name) for row in rows], pa.int64()) for name in numbers},
        "updated_at": pa.array([row["updated_at"] for row in rows], TIME),
        "deleted": pa.array([row.get("deleted", False) for row in rows]),
    }
    return pa.table(columns)


def hash_of(row: dict[str, Any]) -> int:
    return sum(f"{row['stream']}{row.get('key') or row['order']}".encode()) % BUCKETS


def in_buckets(events: pa.Table) -> Callable[[BucketWork], list[BucketResult]]:
    """Merge one bucket after the other, as executors do."""

    def run(work: BucketWork) -> list[BucketResult]:
        buckets = set(events.column(BUCKET).to_pylist())
        if work.cuts.new:
            buckets |= {*work.rows, *work.remembered}
        return [work.run([one], events.filter(pc.equal(events.column(BUCKET), one))) for one in sorted(buckets)]

    return run


def in_threads(events: pa.Table) -> Callable[[BucketWork], list[BucketResult]]:
    """Merge all buckets as the driver does."""
    return lambda work: run_in_driver(events, work)


class Killer:
    """Ends the process before or after some of the commits: those for which `plan` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Callable[[int], str | None]) -> None:
        self._plan = plan  # "before" or "after" for the number of a commit
        self.commits = self.kills = 0
        for module, name in ((applying, "commit"), (in_driver, "_merge_into")):
            monkeypatch.setattr(module, name, self._deadly(getattr(module, name)))

    def _deadly(self, commit: Callable[..., None]) -> Callable[..., None]:
        def killed(*args: Any, **kwargs: Any) -> None:
            when = self._plan(self.commits)
            self.commits += 1
            if when != "before":
                commit(*args, **kwargs)
            if when is not None:
                self.kills += 1
                raise KilledError

        return killed


def at_random(chance: random.Random) -> Callable[[int], str | None]:
    return lambda _: chance.choice(["before", "after"]) if chance.random() < 0.15 else None


def run(
    tables: Tables, settings: MaterializeSettings, layout: Layout, past: History, path: str, chance: random.Random
) -> None:
    """Apply all batches. In the middle the job is started again with more fields in its schema."""
    prepare(tables, settings, layout)
    applier = Applier(tables, layout)
    for number, rows in enumerate(past.batches):
        if number == past.grows_at:
            layout = msgspec.structs.replace(layout, payload=GROWN)
            prepare(tables, settings, layout)
            applier = Applier(tables, layout)
        events, batch = prepared(rows), TableBatch("job", number, made_of=number)
        while True:
            taken = path if path != "both" else chance.choice(["merge", "buckets"])
            try:
                table = tables.rows.open()
                applier.check(batch, table)
                if batch.is_done(table):
                    break
                if taken == "merge":
                    applier.apply_in_driver(events, batch)
                else:
                    applier.apply_by_bucket(chance.choice([in_buckets, in_threads])(events), batch)
                break
            except KilledError:
                applier = Applier(tables, layout)
        if chance.random() < 0.2:
            applier = Applier(tables, layout)


@pytest.mark.parametrize("path", quick(1, ["both", "merge", "buckets"]))
@pytest.mark.parametrize(
    ("is_history", "tracked"), [(False, None), (True, None), (True, ("shade",))], ids=["scd1", "scd2", "tracked"]
)
@pytest.mark.parametrize("sequence", [None, pa.int64()], ids=["order", "sequence"])
def test_any_history(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    is_history: bool,
    tracked: tuple[str, ...] | None,
    sequence: pa.DataType | None,
) -> None:
    layout = Layout(PAYLOAD, sequence=sequence, is_history=is_history, tracked=tracked)
    settings = MaterializeSettings(buckets=BUCKETS, scd=2 if is_history else 1)
    kills = 0
    for seed in range(2):
        chance = random.Random(f"{seed} {path} {layout.rows.names} {tracked}")
        past = History(chance)
        tables = tables_at(str(tmp_path / str(seed)))
        with monkeypatch.context() as patch:
            killer = Killer(patch, at_random(chance))
            run(tables, settings, layout, past, path, chance)
            kills += killer.kills
        is_sequenced = sequence is not None
        expected = (
            history(past.events, sequenced=is_sequenced, tracked=tracked is not None)
            if is_history
            else current(past.events, sequenced=is_sequenced)
        )
        rows = tables.rows.open().to_pyarrow_table().drop_columns(BUCKET)
        assert table_rows(rows) == comparable(expected), f"seed {seed}"
        bad = tables.quarantine.open().to_pyarrow_table()
        assert sorted(zip(bad["stream"].to_pylist(), bad["order"].to_pylist(), strict=True)) == sorted(past.bad)
    assert kills


def deletion(life: int, order: int, key: str, **others: Any) -> dict[str, Any]:
    return {**change(life, order, key, **others), "value": None, "deleted": True}


def change(life: int, order: int, key: str, **others: Any) -> dict[str, Any]:
    place = {"stream": "a", "incarnation": life, "order": order, "begin": order, "offset": f"{life}_{order}"}
    return {
        **place,
        "type": "t",
        "updated_at": life + order,
        "key": key,
        "value": 1,
        "shade": 0,
        "sequence": 1,
        **others,
    }


def apply(tables: Tables, layout: Layout, path: str, *batches: list[dict[str, Any]], job: str = "job") -> list[str]:
    """The keys of the rows after the batches; in a history, of the current rows. A batch starts where the one before
    ended, which is in the incarnation that goes on there."""
    applier = Applier(tables, layout)
    for number, rows in enumerate(batches):
        starts = {row["stream"]: BatchStart(row["incarnation"], row["begin"]) for row in rows[:1] if number}
        if path == "merge":
            applier.apply_in_driver(prepared(rows), TableBatch(job, number, made_of=number), starts)
        else:
            applier.apply_by_bucket(in_buckets(prepared(rows)), TableBatch(job, number, made_of=number), starts)
    rows = tables.rows.open().to_pyarrow_table().to_pylist()
    return sorted(row["key"] for row in rows if row.get("is_current", True))


def test_a_merge_of_buckets_opens_the_files_of_each_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store each would be a connection."""
    layout, tables = Layout(PAYLOAD, sequence=pa.int64(), is_history=True), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2, sequence_by="sequence"), layout)
    files, opened, merges = Lake.files, Counter[Lake](), Counter[str]()

    def counted(lake: Lake) -> TableFiles:
        opened[lake] += 1
        return files(lake)

    def run(work: BucketWork) -> list[BucketResult]:
        monkeypatch.setattr(Lake, "files", counted)
        merges["all"] += 1
        results = run_in_driver(prepared(events), work)
        monkeypatch.setattr(Lake, "files", files)
        return results

    applier = Applier(tables, layout)
    for number in range(2):
        opened.clear()
        merges.clear()
        events = [change(1, 100 * number + at, key, sequence=number) for at, key in enumerate("klmnop")]
        events.append(deletion(1, 100 * number + 9, "k", sequence=9))
        applier.apply_by_bucket(run, TableBatch("job", number, made_of=number), {})
    assert len(files_of(tables.rows.open())) == BUCKETS  # so that there is more than one file of each table
    assert opened == {tables.rows: merges["all"], tables.remembered: merges["all"]}


@pytest.mark.parametrize("path", ["merge", "buckets"])
def test_a_stream_that_was_created_again_and_starts_with_other_events(tmp_path: Path, path: str) -> None:
    layout, tables = Layout(PAYLOAD), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS), layout)
    other = {**change(2, 0, "u"), "type": None, "key": None, "value": None, "control": OTHER}
    assert apply(tables, layout, path, [change(1, 0, "k"), change(1, 9, "l")], [other], [change(2, 9, "m")]) == ["m"]


def test_a_history_of_another_checkpoint(tmp_path: Path) -> None:
    layout, tables = Layout(PAYLOAD, is_history=True), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2), layout)
    Applier(tables, layout).check_owner("other")
    apply(tables, layout, "merge", [change(1, 0, "k")])
    Applier(tables, layout).check_owner("job")
    with pytest.raises(OptionError, match=r"another checkpoint.*delete the table"):
        Applier(tables, layout).check_owner("other")
    Applier(tables, Layout(PAYLOAD, is_history=True, sequence=pa.int64())).check_owner("other")


@pytest.mark.parametrize("path", ["merge", "buckets"])
@pytest.mark.parametrize("sequence", [None, pa.int64()], ids=["order", "sequence"])
@pytest.mark.parametrize("is_history", [False, True], ids=["scd1", "scd2"])
def test_a_path_that_became_a_fork_of_an_older_stream(
    tmp_path: Path, path: str, sequence: pa.DataType | None, is_history: bool
) -> None:
    layout, tables = Layout(PAYLOAD, sequence=sequence, is_history=is_history), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2 if is_history else 1), layout)
    first = [change(5, 0, "k"), change(5, 9, "l")]
    fork = [[change(3, 0, "l"), change(3, 9, "m")], [change(3, 18, "n")], [change(7, 27, "o")]]
    assert apply(tables, layout, path, first, *fork) == ["l", "m", "n", "o"]
    lives = {row["key"]: row["incarnation"] for row in tables.rows.open().to_pyarrow_table().to_pylist()}
    assert (lives["m"], lives["n"], lives["o"]) == (3, 3, 7)


def test_a_batch_of_bad_events_whose_number_was_used_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed before its last commit, which is that of the table."""
    layout = Layout(PAYLOAD)
    tables = tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=1), layout)
    place = {"stream": "a", "incarnation": 1, "order": 0, "begin": 0, "updated_at": 0}
    bad = prepared([{**place, "bad": "no event", "message": "{}"}])
    with monkeypatch.context() as patch:
        Killer(patch, {2: "before"}.get)
        with pytest.raises(KilledError):
            Applier(tables, layout).apply_in_driver(bad, TableBatch("job", 0, made_of=1))
    Applier(tables, layout).check(TableBatch("job", 0, made_of=1), tables.rows.open())
    with pytest.raises(BatchReusedError, match="quarantine"):
        Applier(tables, layout).check(TableBatch("job", 0, made_of=2), tables.rows.open())


@pytest.mark.parametrize("path", quick(1, ["both", "merge", "buckets"]))
@pytest.mark.parametrize("is_history", [False, True], ids=["scd1", "scd2"])
def test_the_changes_in_a_change_data_feed_add_up_to_the_table(tmp_path: Path, path: str, is_history: bool) -> None:
    """Also where a bucket is rewritten: without change files, readers see its rows deleted and inserted again."""
    chance, tables = random.Random(path), tables_at(str(tmp_path / "t"))
    layout = Layout(GROWN, is_history=is_history)
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2 if is_history else 1), layout)
    tables.rows.open().alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    applier = Applier(tables, layout)
    for number, rows in enumerate(History(chance).batches):
        events, batch = prepared(rows), TableBatch("job", number, made_of=number)
        if path == "merge" or (path == "both" and chance.random() < 0.5):
            applier.apply_in_driver(events, batch)
        else:
            applier.apply_by_bucket(in_buckets(events), batch)
        TableUpkeep(2, 1).after(number, [tables.rows])
    table = tables.rows.open()
    names, feed = table.to_pyarrow_table().column_names, pa.table(table.load_cdf(starting_version=1).read_all())
    sums: Counter[str] = Counter()
    for kind, row in zip(feed.column("_change_type").to_pylist(), feed.select(names).to_pylist(), strict=True):
        sums[str(row)] += 1 if kind in ("insert", "update_postimage") else -1
    assert table.count()
    assert {row: count for row, count in sums.items() if count} == Counter(
        map(str, table.to_pyarrow_table().to_pylist())
    )


@pytest.mark.parametrize("path", ["merge", "buckets"])
@pytest.mark.parametrize("is_history", [False, True], ids=["scd1", "scd2"])
def test_a_stream_that_is_read_again_from_its_beginning(tmp_path: Path, path: str, is_history: bool) -> None:
    """Its server was restored to an earlier state. The rows of the lost events would stay, or be in a history twice."""
    layout, tables = Layout(PAYLOAD, is_history=is_history), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2 if is_history else 1), layout)

    def take(applier: Applier, number: int, rows: list[dict[str, Any]], starts: dict[str, BatchStart]) -> None:
        events, batch = prepared(rows), TableBatch("job", number, made_of=number)
        if path == "merge":
            applier.apply_in_driver(events, batch, starts)
        else:
            applier.apply_by_bucket(in_buckets(events), batch, starts)

    applier = Applier(tables, layout)
    take(applier, 0, [change(1, 0, "k"), change(1, 20, "l"), change(1, 40, "m")], {})
    take(applier, 1, [change(1, 60, "k")], {"a": BatchStart(1, 60), "b": BatchStart(1, 7)})
    before = comparable(tables.rows.open().to_pyarrow_table().to_pylist())
    for again in (applier, Applier(tables, layout)):
        with pytest.raises(DataLossError, match="a was read up to position 80, and is read again from its beginning"):
            take(again, 2, [change(1, 0, "k"), change(1, 20, "l"), change(1, 99, "n")], {"a": BatchStart(1, 80)})
    assert comparable(tables.rows.open().to_pyarrow_table().to_pylist()) == before
    take(Applier(tables, layout), 2, [change(2, 0, "k")], {"a": BatchStart(1, 80)})  # the stream was created again


def from_begin(begin: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "begin": begin} for row in rows]


@pytest.mark.parametrize("path", ["merge", "buckets"])
@pytest.mark.parametrize("is_history", [False, True], ids=["scd1", "scd2"])
def test_a_snapshot_replaces_the_state(tmp_path: Path, path: str, is_history: bool) -> None:
    """The stream was compacted while the job was behind. Its events have the place before the one that follows."""
    layout, tables = Layout(PAYLOAD, is_history=is_history), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS, scd=2 if is_history else 1), layout)
    reset = {**change(1, 199, "k"), "type": None, "key": None, "control": "reset"}
    snapshot = from_begin(200, [reset, change(1, 199, "l"), change(1, 199, "n")])
    batches = [
        ([change(1, 0, "k"), change(1, 20, "l"), change(1, 40, "m")], {}),
        ([*snapshot, *from_begin(200, [change(1, 200, "o"), change(1, 220, "n")])], {"a": BatchStart(1, 60)}),
        (from_begin(240, [change(1, 240, "p")]), {"a": BatchStart(1, 240)}),
    ]
    applier = Applier(tables, layout)
    for number, (rows, starts) in enumerate(batches):
        events, batch = prepared(rows), TableBatch("job", number, made_of=number)
        if path == "merge":
            applier.apply_in_driver(events, batch, starts)
        else:
            applier.apply_by_bucket(in_buckets(events), batch, starts)
    rows = tables.rows.open().to_pyarrow_table().to_pylist()
    assert sorted(row["key"] for row in rows if row.get("is_current", True)) == ["l", "n", "o", "p"]
    if is_history:  # the rows of before are closed where the snapshot begins
        closed = sorted((row["key"], row["valid_to_order"]) for row in rows if not row["is_current"])
        assert closed == [("k", 199), ("l", 199), ("m", 199), ("n", 220)]


@pytest.mark.parametrize("path", ["merge", "buckets"])
@pytest.mark.parametrize(
    ("rows", "start", "keys"),
    [
        ([change(2, 70, "n")], BatchStart(1, 60), ["n"]),  # created again and trimmed before it was read
        ([change(2, 0, "n")], BatchStart(2, 0), ["n"]),  # created again, empty at the previous batch
        ([change(2, 70, "n")], BatchStart(2, 70), ["k", "l", "n"]),  # a fork whose own events begin here
        (
            [change(1, 60, "m"), change(2, 70, "n")],
            BatchStart(1, 60),
            ["k", "l", "m", "n"],
        ),  # across that point
        ([change(2, 70, "n")], None, ["n"]),  # the stream was gone meanwhile
        ([change(2, 0, "m"), change(3, 70, "n")], BatchStart(1, 60), ["m", "n"]),  # created again as a fork
    ],
)
def test_a_stream_that_was_created_again_is_known_by_its_incarnation(
    tmp_path: Path, path: str, rows: list[dict[str, Any]], start: BatchStart | None, keys: list[str]
) -> None:
    layout, tables = Layout(PAYLOAD), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS), layout)
    applier = Applier(tables, layout)
    rows = [{**row, "begin": row["order"]} for row in rows]
    for number, some in enumerate(([change(1, 0, "k"), change(1, 20, "l")], rows)):
        events, batch = prepared(some), TableBatch("job", number, made_of=number)
        starts = {} if start is None or not number else {"a": start}
        if path == "merge":
            applier.apply_in_driver(events, batch, starts)
        else:
            applier.apply_by_bucket(in_buckets(events), batch, starts)
    assert sorted(row["key"] for row in tables.rows.open().to_pyarrow_table().to_pylist()) == keys


@pytest.mark.parametrize("path", ["merge", "buckets"])
def test_a_batch_that_changes_no_row_is_committed_to_the_table(tmp_path: Path, path: str) -> None:
    """The table has every batch, so a table that lacks the last one is not the table of the checkpoint."""
    layout, tables = Layout(PAYLOAD), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS), layout)
    other = {**change(1, 9, "u"), "type": None, "key": None, "value": None, "control": OTHER}
    for number, rows in enumerate([[change(1, 0, "k")], [other], []]):
        applier, events, batch = Applier(tables, layout), prepared(rows), TableBatch("job", number, made_of=number)
        if path == "merge":
            applier.apply_in_driver(events, batch)
        else:
            applier.apply_by_bucket(in_buckets(events), batch)
        assert tables.rows.open().transaction_version("job") == number
    assert [row["key"] for row in tables.rows.open().to_pyarrow_table().to_pylist()] == ["k"]


@pytest.mark.parametrize("missing", ["streams", "quarantine", "remembered"])
def test_a_table_beside_the_table_that_is_missing(tmp_path: Path, missing: str) -> None:
    layout, tables = Layout(PAYLOAD, sequence=pa.int64()), tables_at(str(tmp_path / "t"))
    settings = MaterializeSettings(buckets=BUCKETS)
    prepare(tables, settings, layout)
    apply(tables, layout, "merge", [change(1, 0, "k")])
    lake = getattr(tables, missing)
    shutil.move(lake.uri, tmp_path / "moved")
    with pytest.raises(
        CheckpointMismatchError, match=f"{lake.uri}, which belongs to {tables.rows.uri}, does not exist"
    ):
        prepare(tables, settings, layout)
    assert not lake.exists()
    lake.create(pa.schema([("stream", pa.string())]))
    with pytest.raises(CheckpointMismatchError, match=f"{lake.uri} is not the table that belongs to"):
        prepare(tables, settings, layout)
    shutil.rmtree(lake.uri)
    shutil.move(tmp_path / "moved", lake.uri)
    prepare(tables, settings, layout)
    shutil.rmtree(tables.rows.uri)
    if missing != "quarantine":  # which has no rows yet
        with pytest.raises(CheckpointMismatchError, match=f"belongs to {tables.rows.uri}, which does not exist"):
            prepare(tables, settings, layout)
        assert not tables.rows.exists()


def test_tables_of_a_job_that_was_killed_while_it_created_them(tmp_path: Path) -> None:
    layout, tables = Layout(PAYLOAD), tables_at(str(tmp_path / "t"))
    prepare(tables, MaterializeSettings(buckets=BUCKETS), layout)
    shutil.rmtree(tables.rows.uri)  # the last one
    shutil.rmtree(tables.quarantine.uri)
    prepare(tables, MaterializeSettings(buckets=BUCKETS), layout)
    assert apply(tables, layout, "merge", [change(1, 0, "k")]) == ["k"]


@pytest.mark.parametrize("path", ["merge", "buckets"])
@pytest.mark.parametrize("set_back", ["streams", "quarantine", "remembered"])
def test_a_table_beside_the_table_that_was_set_back(tmp_path: Path, path: str, set_back: str) -> None:
    layout, tables = Layout(PAYLOAD, sequence=pa.int64()), tables_at(str(tmp_path / "t"))
    settings, checkpoint = MaterializeSettings(buckets=BUCKETS), tmp_path / "t.checkpoint"
    prepare(tables, settings, layout)
    lake = getattr(tables, set_back)
    shutil.copytree(lake.uri, tmp_path / "saved")
    bad = {**change(1, 20, "k"), "type": None, "bad": "no event", "message": "{}"}
    apply(tables, layout, path, [change(1, 0, "k"), deletion(1, 9, "k", sequence=3), bad], [change(1, 40, "l")])
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "1").write_text("")
    (checkpoint / "metadata").write_text('{"id": "job"}')
    made_of = hash_of_range(checkpoint, 1)
    assert made_of is not None
    tables.rows.commit(tables.rows.open(), [], batch=TableBatch("job", 1, made_of))
    prepare(tables, settings, layout)
    shutil.rmtree(lake.uri)
    shutil.copytree(tmp_path / "saved", lake.uri)
    with pytest.raises(CheckpointMismatchError, match=f"{lake.uri} was set back: it lacks batch 0"):
        prepare(tables, settings, layout)
