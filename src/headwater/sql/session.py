"""Runs queries: DuckDB over streams, states, tables and files."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from types import TracebackType

import duckdb
import pyarrow as pa

from headwater import limits
from headwater.client import Client
from headwater.client.forking import leave, process
from headwater.errors import ForkedError, SqlDataError, SqlError
from headwater.protocol.globs import fixed_part, glob
from headwater.sql.references import quoted_name, references_of
from headwater.sql.relations import Relation, Relations
from headwater.sql.sources import ArrowSource

_SETTINGS: dict[
    str, str | bool | int | float | list[str]
] = {  # nothing is fetched from the network, and no variable of Python becomes a table
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
_MISSING = re.compile(r"requires the extension (\w+)", re.IGNORECASE)
_JSON = "JSON"


class SqlAnswer:
    """The result of a query, which is computed while it is read: once, and before the next query of the session."""

    def __init__(self, reader: pa.RecordBatchReader, json_columns: frozenset[str], relations: list[Relation]) -> None:
        names = _different(reader.schema.names)
        self.schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
        self.json_columns = json_columns  # those of JSON, which Arrow has as text
        self.streams = {path: until for relation in relations for path, until in relation.streams}
        self.named_streams = {
            path: until for relation in relations if relation.glob is None for path, until in relation.streams
        }
        self.tables = {name: seqno for relation in relations for name, seqno in relation.tables}
        self.globs = {relation.glob for relation in relations if relation.glob is not None}
        self._reader = reader
        self._relations = relations
        self._process = process()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows. An error of a scan is raised as it was, not as DuckDB words it."""
        if self._process != process():
            raise ForkedError("this SqlAnswer belongs to the parent process; run the query here")
        with failures(self._relations):
            for batch in self._reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return pa.Table.from_batches(list(self.batches()), self.schema)


class SqlSession:
    """Runs queries over the streams and tables of a client's server.

    ```python
    with Client("http://127.0.0.1:4437") as client, SqlSession(client) as session:
        sold = client.stream("sold")
        sold.create(messages=[{"item": "tea", "pieces": 2}, {"item": "oil", "pieces": 1}])
        answer = session.query(f"SELECT item, sum(pieces) AS pieces FROM '{sold.path}' GROUP BY ALL ORDER BY ALL")
        print(answer.arrow().to_pylist())
    ```
    """

    def __init__(self, client: Client, *, direct: bool = True) -> None:
        """`direct`: read long streams over connections of its own, with the headers of the client. Switch it off if the
        client has its own TLS settings, proxy or httpx client."""
        self._client = client
        self._direct = direct
        self._database: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None  # of the last query
        self._spilled: weakref.finalize[[str, int], SqlSession] | None = None  # removes what the database does not keep
        self._process = process()

    def query(self, text: str) -> SqlAnswer:
        """Begin a query. Streams are read up to where they end now. Raises SqlError if it cannot be run."""
        self._end()
        self._connection = connection = self._opened().cursor()  # with names of its own
        connection.execute("SET TimeZone = 'UTC'")
        relations: list[Relation] = []
        with failures(relations):
            references = references_of(connection, text)
            _check_case(references.names)
            finding = Relations(self._client, connection, references, is_direct=self._direct)
            relations += [finding.called(call, view) for call, view in references.views.items()]
            named = (finding.named(name) for name in references.names if name not in references.views.values())
            relations += [relation for relation in named if relation is not None]
            for number, relation in enumerate(relations):
                _stand_in(connection, relation, f"source_{number}")
            result = connection.sql(references.text)
            names = zip(result.columns, result.types, strict=True)
            json_columns = frozenset(name for name, kind in names if str(kind) == _JSON)
            return SqlAnswer(result.to_arrow_reader(limits.SQL_OUTPUT_ROWS), json_columns, relations)

    def has_new_data(self, answer: SqlAnswer) -> bool:
        """Whether a stream or table has data that the query of an answer did not read."""
        client = self._client
        for pattern in answer.globs:
            matches = glob(pattern).fullmatch
            infos = (info for info in client.list(fixed_part(pattern)) if matches(info.path))
            if any(answer.streams.get(info.path) != info.tail_offset for info in infos):
                return True
        if any(client.stream(path).head().tail_offset != tail for path, tail in answer.named_streams.items()):
            return True
        return any(client.table(name).info().last_seqno != seqno for name, seqno in answer.tables.items())

    def interrupt(self) -> None:
        """Stop the current query, from another thread."""
        if self._connection is not None:
            self._connection.interrupt()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._database is None:
            spilled = tempfile.mkdtemp(prefix="headwater-sql-")
            self._spilled = weakref.finalize(self, _remove, spilled, process())
            self._database = duckdb.connect(config={**_SETTINGS, "temp_directory": spilled})
        return self._database

    def _end(self) -> None:
        """End the current query."""
        if self._process != process():  # DuckDB has none of its threads after a fork
            leave(self._connection)
            leave(self._database)
            self._connection = self._database = self._spilled = None
            self._process = process()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """End the current query, and the session."""
        self._end()
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._spilled is not None:
            self._spilled()
            self._spilled = None

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove(directory: str, made_in: int) -> None:
    """Remove a directory, but not one of the parent process."""
    if made_in == process():
        shutil.rmtree(directory, ignore_errors=True)


def _different(names: list[str]) -> list[str]:
    """Names of columns, with a number where a name is there already."""
    different: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        different.append(name if name not in different else next(one for one in numbered if one not in different))
    return different


def _stand_in(connection: duckdb.DuckDBPyConnection, relation: Relation, source: str) -> None:
    """Make the view that a query reads under the name of a relation."""
    connection.register(source, relation.source)
    select = relation.select.replace("{}", source)
    connection.execute(f"CREATE TEMP VIEW {quoted_name(relation.name)} AS {select}")


def _check_case(names: list[str]) -> None:
    """SQL ignores case in the names of tables, and paths do not."""
    by_case: dict[str, str] = {}
    for name in names:
        other = by_case.setdefault(name.lower(), name)
        if other != name:
            raise SqlError(f"{other!r} and {name!r} are one name in SQL; write stream({name!r}) for one of them")


@contextlib.contextmanager
def failures(relations: list[Relation]) -> Iterator[None]:
    """Raise errors of DuckDB as ours, and the error of a scan instead of them."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
        for relation in relations:
            if isinstance(relation.source, ArrowSource) and relation.source.failure is not None:
                raise relation.source.failure from None
        if isinstance(error, duckdb.InterruptException):
            raise KeyboardInterrupt from None
        raise _described(error, relations) from None


_UNKNOWN_COLUMN = re.compile(r'column "?([^"]+?)"? (?:not found|does not exist)|does not have a column named "([^"]+)"')


def _columns_of(relations: list[Relation]) -> str:
    """The columns that there are, except the hidden ones."""
    lists = (f"{one.name!r} has {', '.join(one.columns[:30])}" for one in relations if one.columns)
    return "".join(f"; {each}" for each in lists)


_OF_QUERIES = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.NotImplementedException)


def _described(error: Exception, relations: list[Relation]) -> SqlError:
    what, _, _ = str(error).partition("\n\n")
    what = " ".join(what.split()).removeprefix("Invalid Input Error: ")
    if match := _MISSING.search(str(error)):
        return SqlError(f"this needs the DuckDB extension {match[1]}, and none is fetched; copy the data here first")
    if isinstance(error, duckdb.BinderException) and (match := _UNKNOWN_COLUMN.search(what)):
        known = [name for relation in relations for name in relation.columns]
        name = match[1] or match[2]
        close = difflib.get_close_matches(name, known, n=1)
        return SqlError(
            f"there is no column {name!r}{f'; did you mean {close[0]!r}?' if close else _columns_of(relations)}"
        )
    what = what.removeprefix(f"{what.partition(' Error: ')[0]} Error: ") if " Error: " in what[:40] else what
    return SqlError(what) if isinstance(error, _OF_QUERIES) else SqlDataError(what)
