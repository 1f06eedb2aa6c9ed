"""The options of the format `stp`, and refused options."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.spark.tables.options import table_read_options, table_write_options

SERVER = "http://127.0.0.1:4437"


@pytest.mark.parametrize(
    ("texts", "root", "table"),
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
def test_url_and_option_table(texts: dict[str, str], root: str, table: str) -> None:
    options = table_read_options(texts, bounded=True)
    assert (options.url, options.table) == (root, table)


def test_options_of_a_source() -> None:
    options = table_read_options(
        {"url": f"{SERVER}/v1/table/a", "startingseqno": "7", "endingSeqNo": "9", "minPartitions": "3"}, bounded=True
    )
    assert (options.starting_seq_no, options.ending_seq_no, options.min_partitions, options.fail_on_data_loss) == (
        7,
        9,
        3,
        True,
    )
    options = table_read_options(
        {"url": f"{SERVER}/v1/table/a", "startingSeqNo": "LATEST", "maxRowsPerTrigger": "5"}, bounded=False
    )
    assert (options.starting_seq_no, options.max_rows_per_trigger) == ("latest", 5)


@pytest.mark.parametrize(
    ("texts", "bounded", "message"),
    [
        ({"url": ""}, True, "the option url is missing"),
        ({"url": SERVER}, True, "set the option table"),
        ({"url": f"{SERVER}/v1/stream/"}, True, "set the option table"),
        ({"url": f"{SERVER}/v1/table"}, True, "set the option table"),
        ({"table": "b"}, True, "remove the option table"),
        ({"url": "ftp://host/x"}, True, "does not begin with https"),
        ({"url": "http://me:secret@host/x"}, True, "use the option token"),
        ({"url": f"{SERVER}?x=1", "table": "a"}, True, "must not have a query"),
        ({"url": SERVER, "table": "a/notify"}, True, "not the name of a table"),
        ({"url": SERVER, "table": "http://host/x"}, True, "not the name of a table"),
        ({"startingSeqNo": "0"}, True, "startingSeqNo must be earliest or latest, or a SeqNo"),
        ({"startingSeqNo": "-5"}, True, "got '-5'"),
        ({"endingSeqNo": "earliest"}, True, "endingSeqNo must be latest, or a SeqNo"),
        ({"endingSeqNo": "5"}, False, "endingSeqNo is for batch reads"),
        ({"view": "active"}, False, "view is for batch reads"),
        ({"view": "live"}, True, "view must be all or active"),
        ({"view": "active", "endingSeqNo": "5"}, True, "remove startingSeqNo and endingSeqNo"),
        ({"maxRowsPerTrigger": "5"}, True, "maxRowsPerTrigger is for streaming queries"),
        ({"startingOffsets": "latest"}, True, "did you mean startingSeqNo?"),
        ({"maxRecordsPerTrigger": "5"}, False, "did you mean maxRowsPerTrigger?"),
        ({"numPartitions": "5"}, True, "did you mean minPartitions?"),
        ({"starttingSeqNo": "5"}, True, "did you mean startingSeqNo?"),
        ({"header": "true"}, True, "there is no option header; did you mean headers?"),
        ({"schema": "price"}, True, "there is no option schema"),
    ],
)
def test_refused_options_of_a_source(texts: dict[str, str], bounded: bool, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        table_read_options({"url": f"{SERVER}/v1/table/a", **texts}, bounded=bounded)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_options_of_a_sink() -> None:
    options = table_write_options({"url": f"{SERVER}/v1/table/a%20b/c", "checkpointLocation": "x", "queryName": "q"})
    assert (options.target, options.is_table, options.content_type) == ("a b/c", True, None)
    assert options.url == f"{SERVER}/v1/stream/"
    options = table_write_options(
        {"url": SERVER, "table": "a", "schema": "a price", "version": "2", "escape": "backslash"}
    )
    assert options.content_type == 'text/sequence; schema="a price"; version=2; escape=backslash'


@pytest.mark.parametrize(
    ("texts", "message"),
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
def test_refused_options_of_a_sink(texts: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        table_write_options({"url": f"{SERVER}/v1/table/a", **texts})
    assert message in str(caught.value)
