"""A Spark session without Java: it runs the real sources, sinks and tasks one after the other in this process.

A streaming query has the order of Spark's steps: the offsets of a batch are stored, the batch is processed, and its
commit is stored. A query that continues repeats a batch that has offsets and no commit. Computations in SQL are not
done here; the tests replace the methods that need them.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.spark.formats import DurableStreamsFormat, StpFormat, StreamStateFormat

_TYPES: dict[str, DataType] = {
    "BIGINT": LongType(),
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "INT": IntegerType(),
    "STRING": StringType(),
    "TIMESTAMP_LTZ": TimestampType(),
}
_FORMATS = {kind.name(): kind for kind in (DurableStreamsFormat, StpFormat, StreamStateFormat)}
InArrow: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def struct_of(ddl: str | StructType) -> StructType:
    if isinstance(ddl, StructType):
        return ddl
    pairs = [field.split() for field in ddl.replace("`", "").replace("NOT NULL", "").split(",")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


def arrow_of(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


class Session:
    """What jobs use of a SparkSession. `batches` are those of an in-memory stream, instead of a source."""

    def __init__(self, batches: Sequence[pa.Table] | None = None) -> None:
        self.batches = batches
        self.sparkContext = SimpleNamespace(defaultParallelism=2)
        self.formats: dict[str, type[DataSource]] = dict(_FORMATS)
        self.dataSource = SimpleNamespace(register=self._register)

    def _register(self, kind: Any) -> None:
        self.formats[kind.name()] = kind

    @property
    def readStream(self) -> _Loading:  # noqa: N802
        return _Loading(self)

    def createDataFrame(self, rows: Sequence[tuple[Any, ...]], schema: str | StructType) -> Rows:  # noqa: N802
        kinds = arrow_of(struct_of(schema))
        columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, kinds, strict=True)]
        return Rows(self, [pa.table(arrays, schema=kinds)])


class _Loading:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._format = ""
        self._options: dict[str, str] = {}
        self._schema: str | StructType | None = None

    def format(self, kind: str) -> _Loading:
        self._format = kind
        return self

    def options(self, **options: str) -> _Loading:
        self._options |= options
        return self

    def schema(self, schema: str | StructType) -> _Loading:
        self._schema = schema
        return self

    def load(self) -> StreamRows:
        if self._session.batches is not None:
            return StreamRows(self._session, _Given(self._session.batches))
        source = self._session.formats[self._format](self._options)
        schema = struct_of(self._schema or source.schema())
        return StreamRows(self._session, source.streamReader(schema))


class _Given:
    """A source of given batches; an offset is the number of batches before it."""

    def __init__(self, batches: Sequence[pa.Table]) -> None:
        self._batches = batches

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        return _after(0)

    def getDefaultReadLimit(self) -> None:  # noqa: N802
        return None

    def latestOffset(self, start: dict[str, str], limit: None) -> dict[str, str]:  # noqa: N802
        return _after(min(_count(start) + 1, len(self._batches)))

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[pa.Table]:
        return list(self._batches[_count(start) : _count(end)])

    def read(self, partition: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from partition.to_batches()

    def stop(self) -> None:
        pass


def _after(batches: int) -> dict[str, str]:
    """An offset in the form of those of streams."""
    return {"batches": f"{0:016}_{batches:016}"}


def _count(offset: dict[str, str]) -> int:
    return int(offset["batches"].partition("_")[2])


class StreamRows:
    """A streaming DataFrame."""

    isStreaming = True  # noqa: N815

    def __init__(self, session: Session, reader: Any, columns: Sequence[str] | None = None) -> None:
        self._session = session
        self._reader = reader
        self._columns = columns

    def select(self, *columns: str) -> StreamRows:
        return StreamRows(self._session, self._reader, columns)

    @property
    def columns(self) -> list[str]:
        return ["key", "value"]

    @property
    def schema(self) -> StructType:
        return StructType()

    @property
    def writeStream(self) -> _Starting:  # noqa: N802
        return _Starting(self._session, self._reader, self._columns)


class _Starting:
    def __init__(self, session: Session, reader: Any, columns: Sequence[str] | None) -> None:
        self._source = (session, reader, columns)
        self._work: Callable[[Rows, int], None] | None = None
        self._checkpoint = ""

    def foreachBatch(self, work: Callable[[Rows, int], None]) -> _Starting:  # noqa: N802
        self._work = work
        return self

    def option(self, name: str, value: str) -> _Starting:
        assert name == "checkpointLocation"
        self._checkpoint = value
        return self

    def trigger(self, *, availableNow: bool) -> _Starting:  # noqa: N803
        assert availableNow
        return self

    def start(self) -> Query:
        assert self._work is not None
        return Query(*self._source, self._work, Path(self._checkpoint))


class Query:
    """A streaming query with the trigger availableNow."""

    def __init__(
        self,
        session: Session,
        reader: Any,
        columns: Sequence[str] | None,
        work: Callable[[Rows, int], None],
        checkpoint: Path,
    ) -> None:
        self._session = session
        self._reader = reader
        self._columns = columns
        self._work = work
        self._checkpoint = checkpoint
        self._owner = threading.current_thread()
        self._failure: BaseException | None = None
        self.recentProgress: list[Any] = []
        self.id = self._identity()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _identity(self) -> str:
        path = self._checkpoint / "metadata"
        if not path.exists():
            self._store("metadata", json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(path.read_text())["id"])

    def _store(self, name: str, text: str) -> None:
        path = self._checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.tmp")
        hidden.write_text(text)
        os.replace(hidden, path)

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        self._thread.join(timeout)
        if self._failure is not None and threading.current_thread() is self._owner:
            raise self._failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._run_batches()
        except BaseException as error:  # noqa: BLE001  # raised by `awaitTermination`
            self._failure = error
        finally:
            self._reader.stop()

    def _run_batches(self) -> None:
        reader = self._reader
        numbers = sorted(int(path.name) for path in self._checkpoint.glob("offsets/[0-9]*"))
        last = numbers[-1] if numbers else -1
        start = self._end_of(last - 1) if last >= 0 else reader.initialOffset()
        if last >= 0:
            end = self._end_of(last)
            if not (self._checkpoint / "commits" / str(last)).exists():
                self._process(last, start, end)
            start = end
        reader.prepareForTriggerAvailableNow()
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            last += 1
            self._store(f"offsets/{last}", "\n".join(["v1", "{}", json.dumps(end, sort_keys=True)]))
            self._process(last, start, end)
            start = end

    def _end_of(self, batch: int) -> Any:
        if batch < 0:
            return self._reader.initialOffset()
        return json.loads((self._checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])

    def _process(self, number: int, start: Any, end: Any) -> None:
        rows = _Unread(self._session, lambda: self._parts(start, end))
        self._work(rows if self._columns is None else rows.select(*self._columns), number)
        self._store(f"commits/{number}", "v1\n{}")

    def _parts(self, start: Any, end: Any) -> list[pa.Table]:
        return [
            pa.Table.from_batches(batches)
            for part in self._reader.partitions(start, end)
            if (batches := list(self._reader.read(part)))
        ]


class Rows:
    """A DataFrame of a batch: a table for each partition."""

    def __init__(self, session: Session, parts: Sequence[pa.Table]) -> None:
        self.sparkSession = session
        self._parts = [part for part in parts if part.num_rows]
        self._empty = next((part.slice(0, 0) for part in parts), pa.table({}))

    @property
    def schema(self) -> pa.Schema:
        return self._empty.schema

    def _each(self, change: Callable[[pa.Table], pa.Table]) -> Rows:
        return Rows(self.sparkSession, [change(part) for part in (*self._parts, self._empty)])

    def select(self, *columns: str) -> Rows:
        return self._each(lambda part: part.select(list(columns)))

    def repartition(self, parts: int) -> Rows:
        whole = self.toArrow()
        return Rows(
            self.sparkSession,
            [whole.take(pa.array(range(n, whole.num_rows, parts), pa.int64())) for n in range(parts)]
            + [whole.slice(0, 0)],
        )

    def mapInArrow(self, work: InArrow, schema: str | StructType) -> Rows:  # noqa: N802
        kinds = arrow_of(struct_of(schema))
        done = [[one.cast(kinds) for one in work(iter(part.to_batches()))] for part in self._parts]
        return Rows(self.sparkSession, [*(pa.Table.from_batches(one, kinds) for one in done), kinds.empty_table()])

    def groupBy(self, column: str) -> _Groups:  # noqa: N802
        return _Groups(self, column)

    def unionByName(self, others: Rows, *, allowMissingColumns: bool) -> Rows:  # noqa: N802, N803
        assert allowMissingColumns
        return Rows(
            self.sparkSession, [pa.concat_tables([self.toArrow(), others.toArrow()], promote_options="default")]
        )

    def limit(self, count: int) -> Rows:
        return Rows(self.sparkSession, [self.toArrow().slice(0, count)])

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.concat_tables([*self._parts, self._empty])

    def count(self) -> int:
        return sum(part.num_rows for part in self._parts)

    def persist(self) -> Rows:
        return self

    def unpersist(self) -> None:
        pass

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(**row) for row in self.toArrow().to_pylist()]

    @property
    def write(self) -> _Saving:
        return _Saving(self._parts, self.schema)


class _Unread(Rows):
    """A DataFrame whose tasks run when something is computed from it."""

    def __init__(self, session: Session, read: Callable[[], Sequence[pa.Table]]) -> None:
        self._read = read
        self.sparkSession = session

    def __getattr__(self, name: str) -> Any:
        if name not in ("_parts", "_empty"):
            raise AttributeError(name)
        super().__init__(self.sparkSession, self._read())
        return self.__dict__[name]


class _Groups:
    def __init__(self, rows: Rows, column: str) -> None:
        self._rows = rows
        self._column = column

    def applyInArrow(self, work: Callable[[pa.Table], pa.Table], schema: str) -> Rows:  # noqa: N802
        whole = self._rows.toArrow()
        values = whole.column(self._column).to_pylist()
        groups = [[n for n, one in enumerate(values) if one == value] for value in sorted(set(values))]
        return Rows(self._rows.sparkSession, [work(whole.take(group)) for group in groups])


class _Saving:
    """A batch write with one of our formats: each partition is a task, and then the driver commits."""

    def __init__(self, parts: Sequence[pa.Table], schema: pa.Schema) -> None:
        self._parts = parts
        self._schema = schema
        self._format = ""
        self._options: dict[str, str] = {}

    def format(self, kind: str) -> _Saving:
        self._format = kind
        return self

    def options(self, **options: str) -> _Saving:
        self._options |= options
        return self

    def mode(self, mode: str) -> _Saving:
        assert mode == "append"
        return self

    def save(self) -> None:
        writer = _FORMATS[self._format](self._options).writer(from_arrow_schema(self._schema), overwrite=False)
        batches = [part.to_batches() for part in self._parts] or [[]]
        writer.commit([writer.write(iter(part)) for part in batches])
