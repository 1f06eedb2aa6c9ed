"""The options of the format `stp`, and refused options."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.spark.tables.options import OptionUse, table_read_options, table_write_options

SERVER = "http://127.0.0.1:4437"


@pytest.mark.parametrize(
    ("given", "root", "table"),
    [
        ({"url": f"{SERVER}/v1/table/a/b"}, f"{SERVER}/v1/stream/", f"{SERVER}/v1/table/a/b"),
        ({"url": f"{SERVER}/v1/table/a/"}, f"{SERVER}/v1/stream/", f"{SERVER}/v1/table/a"),
        ({"url": f"{SERVER}/mount/v1/table/a"}, f"{SERVER}/mount/v1/stream/", f"{SERVER}/mount/v1/table/a"),
        ({"url": SERVER, "table": "/a/b/"}, SERVER, "a/b"),
        ({"url": f"{SERVER}/v1/table/", "table": "a"}, f"{SERVER}/v1/stream/", "a"),
        ({"url": f"{SERVER}/v1/stream", "table": "a"}, f"{SERVER}/v1/stream", "a"),
        ({"url": "https://shop.example/prices?eu=1"}, "https://shop.example", "https://shop.example/prices?eu=1"),
        ({"url": "https://shop.example/?table=prices"}, "https://shop.example", "https://shop.example/?table=prices"),
    ],
)
def test_url_and_option_table(given: dict[str, str], root: str, table: str) -> None:
    options = table_read_options(given, OptionUse.BATCH)
    assert (options.connection.url, options.table) == (root, table)


def test_options_of_a_source() -> None:
    found = table_read_options(
        {"url": f"{SERVER}/v1/table/a", "startingseqno": "7", "endingSeqNo": "9", "minPartitions": "3"}, OptionUse.BATCH
    )
    assert (found.starting, found.ending, found.partitions_min, found.fail_on_data_loss) == (7, 9, 3, True)
    found = table_read_options(
        {"url": f"{SERVER}/v1/table/a", "startingSeqNo": "LATEST", "maxRowsPerTrigger": "5"}, OptionUse.STREAM
    )
    assert (found.starting, found.rows_max) == ("latest", 5)


@pytest.mark.parametrize(
    ("given", "use", "message"),
    [
        ({"url": ""}, OptionUse.BATCH, "the option url is missing"),
        ({"url": SERVER}, OptionUse.BATCH, "set the option table"),
        ({"url": f"{SERVER}/v1/stream/"}, OptionUse.BATCH, "set the option table"),
        ({"url": f"{SERVER}/v1/table"}, OptionUse.BATCH, "set the option table"),
        ({"table": "b"}, OptionUse.BATCH, "remove the option table"),
        ({"url": "ftp://host/x"}, OptionUse.BATCH, "does not begin with https"),
        ({"url": "http://me:secret@host/x"}, OptionUse.BATCH, "use the option token"),
        ({"url": f"{SERVER}?x=1", "table": "a"}, OptionUse.BATCH, "must not have a query"),
        ({"url": SERVER, "table": "a/notify"}, OptionUse.BATCH, "not the name of a table"),
        ({"url": SERVER, "table": "http://host/x"}, OptionUse.BATCH, "not the name of a table"),
        ({"startingSeqNo": "0"}, OptionUse.BATCH, "startingSeqNo must be earliest or latest, or a SeqNo"),
        ({"startingSeqNo": "-5"}, OptionUse.BATCH, "got '-5'"),
        ({"endingSeqNo": "earliest"}, OptionUse.BATCH, "endingSeqNo must be latest, or a SeqNo"),
        ({"endingSeqNo": "5"}, OptionUse.STREAM, "endingSeqNo is for batch reads"),
        ({"view": "active"}, OptionUse.STREAM, "view is for batch reads"),
        ({"view": "live"}, OptionUse.BATCH, "view must be all or active"),
        ({"view": "active", "endingSeqNo": "5"}, OptionUse.BATCH, "remove startingSeqNo and endingSeqNo"),
        ({"maxRowsPerTrigger": "5"}, OptionUse.BATCH, "maxRowsPerTrigger is for streaming queries"),
        ({"startingOffsets": "latest"}, OptionUse.BATCH, "did you mean startingSeqNo?"),
        ({"maxRecordsPerTrigger": "5"}, OptionUse.STREAM, "did you mean maxRowsPerTrigger?"),
        ({"numPartitions": "5"}, OptionUse.BATCH, "did you mean minPartitions?"),
        ({"starttingSeqNo": "5"}, OptionUse.BATCH, "did you mean startingSeqNo?"),
        ({"header": "true"}, OptionUse.BATCH, "there is no option header; the options are url, token"),
        ({"schema": "price"}, OptionUse.BATCH, "there is no option schema"),
    ],
)
def test_refused_options_of_a_source(given: dict[str, str], use: OptionUse, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        table_read_options({"url": f"{SERVER}/v1/table/a", **given}, use)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_of_a_sink() -> None:
    found = table_write_options({"url": f"{SERVER}/v1/table/a%20b/c", "checkpointLocation": "x", "queryName": "q"})
    assert (found.target, found.is_table, found.content_type) == ("a b/c", True, None)
    assert found.connection.url == f"{SERVER}/v1/stream/"
    found = table_write_options(
        {"url": SERVER, "table": "a", "schema": "a price", "version": "2", "escape": "backslash"}
    )
    assert found.content_type == 'text/sequence; schema="a price"; version=2; escape=backslash'


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "https://shop.example/prices"}, "is not a table of a Headwater server"),
        ({"version": "two"}, "a version is an integer"),
        ({"schema": "é"}, "printable ASCII"),
        ({"escape": "json"}, "escape must be none or backslash"),
        ({"contentType": "text/sequence"}, "did you mean schema and version?"),
        ({"startingSeqNo": "1"}, "there is no option startingseqno"),
        ({"stream": "b"}, "did you mean table?"),
        ({"writeVersion": "1"}, "needs a writeId"),
    ],
)
def test_refused_options_of_a_sink(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        table_write_options({"url": f"{SERVER}/v1/table/a", **given})
    assert message in str(caught.value)
