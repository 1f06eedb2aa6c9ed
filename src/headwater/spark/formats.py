"""The formats that Spark registers, which create readers and writers."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.log.content import ContentKind, kind_of
from headwater.protocol.tables.content_type import parse_table_type
from headwater.spark.columns import BAD_COLUMNS, STATE_COLUMNS, STREAM_COLUMNS, check_schema, ddl, values_type
from headwater.spark.options import (
    KEEPING,
    NonFinite,
    ReadOptions,
    StateReadOptions,
    StateWriteOptions,
    StreamReadOptions,
    WriteOptions,
    read_options,
    write_options,
)
from headwater.spark.planning import Planner
from headwater.spark.rows import MessageEncoder
from headwater.spark.sinks import BatchWriter, StreamWriter
from headwater.spark.sources import BatchReader, StreamReader
from headwater.spark.tables.changes import ChangeEncoder, check_change_columns
from headwater.spark.tables.columns import SCHEMA as TABLE_SCHEMA
from headwater.spark.tables.columns import check_schema as check_table_schema
from headwater.spark.tables.options import table_read_options, table_write_options
from headwater.spark.tables.planning import TablePlanner
from headwater.spark.tables.sources import TableBatchReader, TableStreamReader
from headwater.spark.targets import appended_as
from headwater.spark.workers import end_quietly

end_quietly()  # every kind of worker that knows the formats imports this


class DurableStreamsFormat(DataSource):
    """The format `durable-streams`: messages of streams."""

    columns = STREAM_COLUMNS
    state = False

    @classmethod
    def name(cls) -> str:
        return "durable-streams"

    def schema(self) -> str:
        """Request the streams, so that a wrong URL fails at once. A missing stream is not an error, because a query
        that continues may have read it to its end."""
        options = read_options(self.options, bounded=None, state=self.state)
        with options.open(patient=False) as client:
            tails = Planner(options, client).tails()
        if isinstance(options, StreamReadOptions) and options.value_type is not None:
            return ddl(self.columns, options.value_type.upper())
        kinds = {kind_of(info.content_type) for info in tails.values()}
        return ddl(self.columns, "BINARY" if kinds == {ContentKind.BINARY} else "STRING")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, bounded=True, state=self.state)
        check_schema(schema, self._columns(options))
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options, bounded=False, state=self.state)
        check_schema(schema, self._columns(options))
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(write_options(self.options, state=self.state), schema, self._encoder, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(write_options(self.options, state=self.state), schema, self._encoder, overwrite=overwrite)

    def _columns(self, options: ReadOptions) -> dict[str, str]:
        keeps = isinstance(options, StateReadOptions) and options.bad_events in KEEPING
        return {**self.columns, **BAD_COLUMNS} if keeps else self.columns

    def _encoder(self, schema: StructType, options: WriteOptions) -> MessageEncoder:
        non_finite = options.non_finite_numbers if isinstance(options, StateWriteOptions) else NonFinite.FAIL
        return MessageEncoder(schema, options.target, appended_as(options), state=self.state, non_finite=non_finite)


class StreamStateFormat(DurableStreamsFormat):
    """The format `stream-state`: decoded state events of streams."""

    columns = STATE_COLUMNS
    state = True

    @classmethod
    def name(cls) -> str:
        return "stream-state"

    def schema(self) -> str:
        options = read_options(self.options, bounded=None, state=self.state)
        with options.open(patient=False) as client:
            Planner(options, client).tails()
        value_schema = options.value_schema if isinstance(options, StateReadOptions) else None
        return ddl(self._columns(options), values_type(value_schema))


class StpFormat(DataSource):
    """The format `stp`: reads any SURL, and writes tables of a Headwater server."""

    @classmethod
    def name(cls) -> str:
        return "stp"

    def schema(self) -> StructType:
        """Request the table, so that a wrong URL or a response that is not a table fails at once."""
        options = table_read_options(self.options, bounded=None)
        with options.open(patient=False) as client:
            TablePlanner(options, client).tail()
        return TABLE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        check_table_schema(schema)
        return TableBatchReader(table_read_options(self.options, bounded=True), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        check_table_schema(schema)
        return TableStreamReader(table_read_options(self.options, bounded=False), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_change_columns(schema)
        return BatchWriter(table_write_options(self.options), schema, self._encoder, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        check_change_columns(schema)
        return StreamWriter(table_write_options(self.options), schema, self._encoder, overwrite=overwrite)

    def _encoder(self, schema: StructType, options: WriteOptions) -> ChangeEncoder:
        return ChangeEncoder(schema, options.target or "", parse_table_type(options.content_type).escape)
