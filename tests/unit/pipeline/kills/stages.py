"""What each job does between two kills, and what it must have done in the end, computed without the job's code."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater import limits
from headwater.client import Client
from headwater.errors import BodyTooLargeError, PartialWriteError, ProtocolError
from headwater.pipeline import archive, materialize, publish, replay, snapshot
from headwater.pipeline.archiving import COLUMNS, SCHEMA
from headwater.pipeline.materializing import job as materialize_job
from headwater.pipeline.materializing.layout import BUCKET, Layout
from headwater.pipeline.publishing import _Publishing
from headwater.pipeline.replaying import _Replaying
from headwater.pipeline.scanning import paths_of, scan
from headwater.pipeline.targets import PublishTarget
from tests.unit.pipeline.kills.session import Rows, Session
from tests.unit.pipeline.materializing.oracle import Event, comparable, current, history, table_rows
from tests.unit.pipeline.materializing.test_applying import PAYLOAD, change, deletion, prepared

publish_job = sys.modules[_Publishing.__module__]  # the package has a function of its name
_numbers = itertools.count()
_CHANGES = pa.schema([("key", pa.string()), ("value", pa.string())])
TOO_MANY_BYTES = (1 << 20) + 1  # more than the server takes in one request, and little when it is compressed


class Scene:
    """A job in phases. `begin` changes the world before a phase, `run` is the job, and `check` compares the result."""

    phases = 2

    def __init__(self, directory: Path, url: str, client: Client) -> None:
        self.table = str(directory / "table")
        self.url = url
        self.client = client
        self.prefix = f"kills/{next(_numbers)}"
        self.session: Any = Session()  # in place of a SparkSession

    def begin(self, phase: int) -> None:
        raise NotImplementedError

    def run(self, phase: int) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Replaces what needs Java."""
        yield

    def stored(self, path: str) -> list[Any]:
        return list(self.client.stream(path).read().all())


class Archived(Scene):
    """Streams of messages and of bytes, one that is closed and one that is empty, in several batches."""

    def begin(self, phase: int) -> None:
        client, prefix = self.client, self.prefix
        if phase == 0:
            client.stream(f"{prefix}/json").create(messages=[1, 2, 3])
            text = client.stream(f"{prefix}/text")
            text.create(content_type="text/plain")
            text.append(b"one ")
            text.append(b"two ")
        else:
            client.stream(f"{prefix}/json").append_many([4, 5])
            client.stream(f"{prefix}/json").close()
            client.stream(f"{prefix}/text").append(b"three")
            client.stream(f"{prefix}/empty").create()
            client.stream(f"{prefix}/empty").close()

    def run(self, phase: int) -> None:
        pattern = f"{self.prefix}/*"
        job = archive(
            self.session,
            url=self.url,
            streams=pattern,
            table=self.table,
            once=True,
            max_records=2,
            compact_every=2,
            retain_hours=1,
        )
        job.wait()

    def check(self) -> None:
        rows = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        by_stream: dict[str, list[tuple[int, bytes]]] = {}
        for row in rows:
            by_stream.setdefault(row["stream"].rpartition("/")[2], []).append((row["order"], row["value"]))
        messages = [value for _, value in sorted(by_stream["json"])]
        assert messages == [b"1", b"2", b"3", b"4", b"5"]
        pieces = sorted(by_stream["text"])
        assert b"".join(value for _, value in pieces) == b"one two three"
        assert [order for order, _ in pieces] == [0, 4, 8]
        known = DeltaTable(f"{self.table}.streams").to_pyarrow_table().to_pylist()
        closed = sorted((row["stream"].rpartition("/")[2], row["closed"]) for row in known)
        assert closed == [("empty", True), ("json", True), ("text", False)]


class ArchivedBefore(Archived):
    """The same with tables of an earlier version, which lack columns."""

    def begin(self, phase: int) -> None:
        super().begin(phase)
        if phase == 0:
            names = ("stream", "incarnation", "content_type", "tail_offset", "closed")
            kinds = [(name, pa.bool_() if name == "closed" else pa.string()) for name in names]
            write_deltalake(f"{self.table}.streams", pa.schema(kinds).empty_table())
            columns = [SCHEMA.field(name) for name in (*COLUMNS, "date")]
            write_deltalake(self.table, pa.schema(columns).empty_table(), partition_by=["date"])


class Replayed(Scene):
    """An archive that grows is written to streams below another path."""

    content: tuple[tuple[str, list[Any]], ...] = (
        ("application/json", [1, 2, 3, 4, 5]),
        ("text/plain", [b"one ", b"two ", b"three"]),
    )

    def begin(self, phase: int) -> None:
        for number, (kind, values) in enumerate(self.content):
            stream = self.client.stream(f"{self.prefix}/in/{number}")
            if phase == 0:
                stream.create(content_type=kind)
            for value in values[:2] if phase == 0 else values[2:]:
                stream.append(value)
            if phase == 1 and kind == "application/json":
                stream.close()
        if phase == 0:
            self.client.stream(f"{self.prefix}/in/empty").create(content_type="text/plain")
        archive(self.session, url=self.url, streams=f"{self.prefix}/in/*", table=self.table, once=True).wait()

    def run(self, phase: int) -> None:
        replay(self.session, url=self.url, table=self.table, to=f"{self.prefix}/out").wait()

    def check(self) -> None:
        for number, (kind, values) in enumerate(self.content):
            copy = self.client.stream(f"{self.prefix}/out/{self.prefix}/in/{number}")
            if kind == "application/json":
                assert list(copy.read().all()) == values
            else:
                assert b"".join(copy.read(type=bytes).all()) == b"".join(values)
            info = copy.head()
            assert (info.content_type, info.closed) == (kind, kind == "application/json")
        empty = self.client.stream(f"{self.prefix}/out/{self.prefix}/in/empty").head()
        assert (empty.content_type, empty.closed) == ("text/plain", False)
        assert len(list(self.client.list(f"{self.prefix}/out/"))) == len(self.content) + 1

    @contextmanager
    def patched(self) -> Iterator[None]:
        def archived(self: _Replaying, version: int) -> set[tuple[str, int]]:
            rows = scan(self._spark, self._lake, version, sorted(paths_of(self._lake, version)), ["stream", "offset"])
            return {(row["stream"], int(row["offset"].partition("_")[0])) for row in rows.toArrow().to_pylist()}

        def sorted_rows(self: _Replaying, version: int, lives: dict[str, Any]) -> _Sorted:
            columns = ("stream", "offset", "position", "order", "content_type", "value", "append_end", "continues_at")
            rows = scan(self._spark, self._lake, version, sorted(paths_of(self._lake, version)), columns)
            return _Sorted(self._spark, rows.toArrow())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Replaying, "_archived", archived)
            patch.setattr(_Replaying, "_rows", sorted_rows)
            patch.setattr(limits, "PIPELINE_REPLAY_MESSAGES", 2)
            yield


class _Sorted(Rows):
    """The rows of an archive, of which each stream is a partition."""

    def __init__(self, session: Any, rows: pa.Table) -> None:
        rows = rows.sort_by([("stream", "ascending"), ("order", "ascending")])
        names = rows.column("stream").to_pylist()
        parts = [rows.take([n for n, name in enumerate(names) if name == one]) for one in dict.fromkeys(names)]
        super().__init__(session, [*parts, rows.slice(0, 0)])

    def persist(self, *_: Any) -> _Sorted:
        return self

    def unpersist(self) -> None:
        """Nothing was stored."""


class Snapshots(Scene):
    """Snapshots of a state stream that grows; old ones are deleted."""

    phases = 3
    events = ([("a", 1), ("b", 2)], [("a", 3), ("b", None)], [("c", 4)])

    def begin(self, phase: int) -> None:
        stream = self.client.stream(f"{self.prefix}/state")
        if phase == 0:
            stream.create()
        for key, value in self.events[phase]:
            operation = "delete" if value is None else "upsert"
            event = {"type": "thing", "key": key, "headers": {"operation": operation}}
            stream.append(event if value is None else {**event, "value": value})

    def run(self, phase: int) -> None:
        grace_s = 0 if phase == 2 else 3600
        snapshot(self.session, url=self.url, streams=f"{self.prefix}/state", once=True, grace_s=grace_s).wait()

    def check(self) -> None:
        state = dict(pair for events in self.events for pair in events)
        wanted = {key: value for key, value in state.items() if value is not None}
        (info,) = self.client.list(f"{self.prefix}/state.snapshots/")
        assert info.closed
        assert info.path.rpartition("/")[2] == self.client.stream(f"{self.prefix}/state").head().tail_offset
        first, *events, last = _after_the_last_start(self.stored(info.path))
        assert (first["headers"]["control"], last["headers"]["control"]) == ("snapshot-start", "snapshot-end")
        assert {event["key"]: event["value"] for event in events} == wanted
        assert len(events) == len(wanted)


def _after_the_last_start(events: list[Any]) -> list[Any]:
    """A snapshot that was begun twice has its events after the second start."""
    starts = [n for n, event in enumerate(events) if event["headers"].get("control") == "snapshot-start"]
    return events[starts[-1] :]


class Published(Scene):
    """Versions of a table are published to a stream: each change once, in order."""

    phases = 3
    versions: tuple[dict[str, int], ...] = ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": 4}, {"d": 4})
    to_table = False

    def begin(self, phase: int) -> None:
        rows = self.versions[phase]
        table = pa.table({"id": list(rows), "n": list(rows.values())})
        write_deltalake(self.table, table, mode="overwrite")
        if phase == 1:
            DeltaTable(self.table).optimize.compact()

    @property
    def target(self) -> dict[str, Any]:
        name = f"{self.prefix}/out"
        return {"to_table": name.replace("/", "-")} if self.to_table else {"to": name, "type": "thing"}

    def run(self, phase: int) -> None:
        publish(self.session, url=self.url, table=self.table, keys=["id"], once=True, **self.target).wait()

    def check(self) -> None:
        before: dict[str, int] = {}
        wanted = []
        for after in self.versions:
            changes = [(key, after.get(key)) for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
            wanted.append(sorted(changes))
            before = after
        sent = iter(self.sent())
        assert [sorted(itertools.islice(sent, len(changes))) for changes in wanted] == wanted
        assert list(sent) == []

    def sent(self) -> list[tuple[str, int | None]]:
        if self.to_table:
            rows = self.client.table(self.target["to_table"]).rows()
            return [(row.key, json.loads(row.record)["n"] if row.action == "+" else None) for row in rows]
        events = self.stored(self.target["to"])
        return [(event["key"], event["value"]["n"] if "value" in event else None) for event in events]

    @contextmanager
    def patched(self) -> Iterator[None]:
        def difference(self: _Publishing, before: int | None, after: int, new: set[str], old: set[str]) -> Rows:
            def side(version: int | None, paths: set[str]) -> dict[str, str]:
                if version is None:
                    return {}
                rows = scan(self._spark, self._lake, version, sorted(paths), ["id", "n"])
                return {row["id"]: json.dumps({"n": row["n"]}) for row in rows.toArrow().to_pylist()}

            was, now = side(before, old - new), side(after, new - old)
            changed = sorted(key for key in {*was, *now} if was.get(key) != now.get(key))
            changes = [(key, now.get(key), key not in was) for key in changed]
            session: Any = self._spark
            rows: Rows = session.createDataFrame(changes, "key STRING, value STRING, is_new BOOLEAN").repartition(2)
            return rows

        def rows_of(self: PublishTarget, changes: Rows) -> Rows:
            if self.to is None:
                records = [(row.key, row.value) for row in changes.collect()]
                return changes.sparkSession.createDataFrame(records, "key STRING, record STRING").repartition(2)
            rows = [
                (self.options.type, row.key, "delete" if row.value is None else "upsert", row.value)
                for row in changes.collect()
            ]
            names = "type STRING, key STRING, operation STRING, value STRING"
            return changes.sparkSession.createDataFrame(rows, names).repartition(2)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Publishing, "_difference", difference)
            patch.setattr(PublishTarget, "_rows", rows_of)
            yield


class PublishedToTable(Published):
    """The same to a table of the server."""

    to_table = True


class PublishedStaged(Published):
    """Versions whose rows tasks stage on the server, which appends them to the target itself."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        with super().patched(), pytest.MonkeyPatch.context() as patch:
            patch.setattr("headwater.limits.SPARK_INLINE_BYTES", 0)
            yield


class PublishedStagedToTable(PublishedStaged):
    """The same to a table of the server."""

    to_table = True


class PublishedWithoutLists(Published):
    """The same on a server that does not list its streams."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        def refused(*_: Any, **__: Any) -> Any:
            raise ProtocolError("this server does not list streams")

        with super().patched(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "list", refused)
            yield


class PublishedAfterRefusal(Published):
    """The second version has a row that the server does not take. It is skipped, unless some of it may be sent."""

    versions = ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 7}, {"a": 3, "b": 2})
    refused = {"id": ["a", "b", "c" * TOO_MANY_BYTES], "n": [1, 2, 7]}
    is_partial = False

    def begin(self, phase: int) -> None:
        super().begin(phase)
        if phase == 1:
            write_deltalake(self.table, pa.table(self.refused), mode="overwrite")

    def run(self, phase: int) -> None:
        try:
            super().run(phase)
        except PartialWriteError:
            self.is_partial = True
        except BodyTooLargeError:
            assert phase == 1

    def check(self) -> None:
        assert sorted(self.sent()[:2]) == [("a", 1), ("b", 2)]
        assert self.sent()[2:] == ([] if self.is_partial else [("a", 3)])


class PublishedRows(Published):
    """The batches of a query are published; one of them has no rows."""

    phases = 2
    batches: tuple[list[tuple[str, str | None]], ...] = ([], [("a", "1"), ("b", "2")], [("a", None), ("b", "3")])

    def begin(self, phase: int) -> None:
        tables = [
            pa.table({"key": [key for key, _ in rows], "value": [value for _, value in rows]}, schema=_CHANGES)
            for rows in self.batches
        ]
        self.session = Session(tables[:2] if phase == 0 else tables)

    def run(self, phase: int) -> None:
        rows = self.session.readStream.load()
        place = f"{self.table}.checkpoint"
        publish(self.session, url=self.url, rows=rows, keys=["key"], checkpoint=place, once=True, **self.target).wait()

    def check(self) -> None:
        sent = self.texts()
        assert [sorted(sent[:2], key=str), sorted(sent[2:], key=str)] == [
            sorted(rows, key=str) for rows in self.batches if rows
        ]

    def texts(self) -> list[tuple[str, str | None]]:
        """What the target has."""
        if self.to_table:
            rows = self.client.table(self.target["to_table"]).rows()
            return [(row.key, row.record if row.action == "+" else None) for row in rows]
        events = self.stored(self.target["to"])
        return [(event["key"], None if "value" not in event else str(event["value"])) for event in events]

    @contextmanager
    def patched(self) -> Iterator[None]:
        with super().patched(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(publish_job, "_changes_of", lambda rows, *_: rows)
            yield


class PublishedRowsToTable(PublishedRows):
    """The same to a table of the server."""

    to_table = True


class Kind(msgspec.Struct, frozen=True):
    """A way to materialize. `path`: merge, or by bucket: all of them at once, each in a thread, or each in a task."""

    path: Literal["merge", "buckets", "threads", "tasks"]
    is_history: bool
    tracked: bool
    sequenced: bool

    def __str__(self) -> str:
        form = "tracked" if self.tracked else "scd2" if self.is_history else "scd1"
        return f"materialize-{self.path}-{form}-{'sequence' if self.sequenced else 'order'}"


_WHOLE: tuple[Literal["merge", "buckets"], ...] = ("merge", "buckets")
_APART: tuple[Literal["threads", "tasks"], ...] = ("threads", "tasks")  # these commit what `buckets` does
KINDS = [
    Kind(path, is_history, tracked, sequenced)
    for path in _WHOLE
    for is_history, tracked in ((False, False), (True, False), (True, True))
    for sequenced in (False, True)
] + [Kind(path, is_history, tracked=False, sequenced=True) for path in _APART for is_history in (False, True)]
BUCKETS = 3
_B = {"stream": "b"}
_EMPTY = {"type": None, "key": None, "value": None}
BATCHES = (  # cuts come first, because a cut merges all rows again
    [{**change(1, 0, "n"), **_B}, {**change(1, 20, "o"), **_B}],
    [{**change(1, 40, "z"), **_B, **_EMPTY, "control": "reset"}, {**change(1, 60, "n", shade=1), **_B}],
    [{**change(2, 0, "o"), **_B}, change(1, 0, "k", sequence=2)],  # the stream was created again
    [change(1, 20, "l", sequence=2), change(1, 40, "m", sequence=2)],
    [deletion(1, 60, "k", sequence=4), change(1, 80, "l", sequence=3), change(1, 99, "m", sequence=1)],
    [
        change(1, 120, "k", sequence=3),
        deletion(1, 140, "l", sequence=5),
        change(1, 160, "m", shade=1, sequence=6),
        {**change(1, 180, "z"), **_EMPTY, "bad": "no event", "message": "{}"},
    ],
    [deletion(1, 200, "m", sequence=8)],  # alone, so that no other event makes its row be written again
)


class Materialized(Scene):
    """Events in batches: late ones, deletes, a bad one, a reset, and a stream that was created again."""

    payload = PAYLOAD

    def __init__(self, directory: Path, url: str, client: Client, kind: Kind) -> None:
        super().__init__(directory, url, client)
        self._kind = kind
        self._batches = [prepared(rows) for rows in BATCHES]

    def begin(self, phase: int) -> None:
        self.session = Session(self._batches[:4] if phase == 0 else self._batches)

    def run(self, phase: int) -> None:
        kind = self._kind
        job = materialize(
            self.session,
            url=self.url,
            streams="a*",  # a pattern: the batches come from the session, so no stream has to exist
            table=self.table,
            path="merge" if kind.path == "merge" else "buckets",
            buckets=BUCKETS,
            stored_as_scd_type=2 if kind.is_history else 1,
            track_history_column_list=["shade"] if kind.tracked else None,
            sequence_by="sequence" if kind.sequenced else None,
            compact_every=4,
            retain_hours=1,
            once=True,
        )
        job.wait()

    def check(self) -> None:
        rows = DeltaTable(self.table).to_pyarrow_table().drop_columns(BUCKET)
        events = list(_accepted_events())
        kind = self._kind
        expected = (
            history(events, sequenced=kind.sequenced, tracked=kind.tracked)
            if kind.is_history
            else current(events, sequenced=kind.sequenced)
        )
        wanted = [{name: value for name, value in row.items() if name in rows.column_names} for row in expected]
        assert table_rows(rows) == comparable(wanted)
        bad = DeltaTable(f"{self.table}.quarantine").to_pyarrow_table().to_pylist()
        assert [(row["order"], row["reason"]) for row in bad] == [(180, "no event")]

    @contextmanager
    def patched(self) -> Iterator[None]:
        kind, payload = self._kind, self.payload

        class Columns:
            source_schema = ""
            source_options: dict[str, str] = {}

            def __init__(self, settings: Any) -> None:
                pass

            def layout(self, rows: Any) -> Layout:
                return Layout(
                    payload,
                    sequence=pa.int64() if kind.sequenced else None,
                    is_history=kind.is_history,
                    tracked=("shade",) if kind.tracked else None,
                )

            def prepare(self, rows: Any, batch: int) -> Any:
                return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(materialize_job, "EventColumns", Columns)
            if kind.path == "threads":
                patch.setattr(limits, "PIPELINE_DRIVER_STEP_BYTES", 0)
            if kind.path == "tasks":
                patch.setattr(limits, "PIPELINE_DRIVER_EVENTS", 0)
            yield


class Grown(Materialized):
    """The table has fewer columns than the second run wants."""

    def __init__(self, directory: Path, url: str, client: Client) -> None:
        super().__init__(directory, url, client, Kind("merge", is_history=False, tracked=False, sequenced=False))

    def begin(self, phase: int) -> None:
        super().begin(phase)
        if phase == 1:
            self.payload = PAYLOAD.append(pa.field("extra", pa.int64()))


def _accepted_events() -> Iterator[Event]:
    """The events of the batches for the oracle."""
    lives: dict[str, int] = {}
    for row in itertools.chain.from_iterable(BATCHES):
        stream, life = row["stream"], row["incarnation"]
        place = {"stream": stream, "incarnation": life, "order": row["order"], "at": row["updated_at"]}
        if life != lives.setdefault(stream, life):
            yield Event(**{**place, "order": 0}, is_cut=True)
        lives[stream] = life
        if row.get("control") == "reset":
            yield Event(**place, is_cut=True)
        elif row.get("bad") is None:
            value = None if row.get("deleted") else row["value"]
            yield Event(**place, key=row["key"], value=value, shade=row["shade"], sequence=row["sequence"])


Make = Callable[[Path, str, Client], Scene]
SCENES_OF_STREAMS: dict[str, Make] = {
    "archive": Archived,
    "archive-before": ArchivedBefore,
    "replay": Replayed,
    "snapshot": Snapshots,
    "publish-stream": Published,
    "publish-table": PublishedToTable,
    "publish-staged": PublishedStaged,
    "publish-staged-table": PublishedStagedToTable,
    "publish-unlisted": PublishedWithoutLists,
    "publish-refused": PublishedAfterRefusal,
    "publish-rows": PublishedRows,
    "publish-rows-table": PublishedRowsToTable,
}


def materialized(kind: Kind) -> Make:
    return lambda directory, url, client: Materialized(directory, url, client, kind)


SCENES = SCENES_OF_STREAMS | {str(kind): materialized(kind) for kind in KINDS} | {"materialize-merge-grown": Grown}
