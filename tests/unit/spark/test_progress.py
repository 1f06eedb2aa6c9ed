"""Lag, from progress as Spark reports it and from checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from headwater.client import Client
from headwater.errors import OptionError
from headwater.spark import QueryProgress, StreamLag, lag
from tests.servers import Server


def at(position: int, incarnation: int = 1) -> str:
    return f"{incarnation:016d}_{position:016d}"


def progress(*sources: dict[str, Any]) -> StreamingQueryProgress:
    """As Spark 4.3 reports it."""
    rates = {"description": "source", "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return StreamingQueryProgress.fromJson(
        {
            "id": "1441f53d-6e11-40a8-ac2e-ef5fa20d4b2c",
            "runId": "cc2b83ad-6e83-4aac-bf9f-edb2aa3b70bc",
            "name": "orders",
            "timestamp": "2026-11-16T05:31:15.638Z",
            "batchId": 3,
            "batchDuration": 1500,
            "numInputRows": 10,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "durationMs": {},
            "stateOperators": [],
            "sources": [{**rates, "numInputRows": 10, **source} for source in sources],
            "sink": {"description": "sink", "numOutputRows": 10},
        }
    )


def source(start: Any, end: Any, latest: Any) -> dict[str, Any]:
    return {"startOffset": start, "endOffset": end, "latestOffset": latest}


def test_bytes_and_rows_by_stream() -> None:
    streams = source(
        {"a": at(0), "b": at(50)},
        {"a": at(100), "b": at(150), "c": "-1+2", "d": at(900), "e": f"{at(5)} ended"},
        {"a": at(300), "b": at(150), "c": at(80), "d": at(70, 2), "e": at(5), "new": at(40), "other": "x7"},
    )
    assert lag(progress(streams)) == [
        StreamLag("a", 200, 2),  # ten rows of 1,105 bytes
        StreamLag("b", 0, 0),
        StreamLag("c", 80, 1),
        StreamLag("d", 70, 1),  # created again, and read from its beginning
        StreamLag("e", 0, 0),
        StreamLag("new", 40, 1),
        StreamLag("other", None, None),
    ]


def test_rows_of_tables_and_no_lag_of_other_sources() -> None:
    table = source({"seqno": 1}, {"row": "739b", "seqno": 2}, {"row": "0000", "seqno": 7})
    kafka = source(None, {"topic": {"0": 5}}, {"topic": {"0": 9}})
    files, rate, first = source(None, {"logOffset": 1}, None), source(1, 2, 3), source(None, {}, None)
    assert lag(progress(table, kafka, files, rate, first)) == [StreamLag(None, None, 5)]


def test_rows_are_unknown_before_the_first_batch_ends() -> None:
    assert lag(progress(source(None, {"a": at(10)}, {"a": at(20)}))) == [StreamLag("a", 10, None)]


def test_a_line_for_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    lags: list[list[StreamLag]] = []
    listener = QueryProgress(lambda _, behind: lags.append(behind))
    with caplog.at_level(logging.INFO, "headwater.spark.progress"):
        for end in (at(100), at(300)):
            streams = source({"a": at(0)}, {"a": end}, {"a": at(300)})
            listener.onQueryProgress(QueryProgressEvent(progress(streams)))
    assert caplog.messages == [
        "query orders, batch 3: 10 rows in 1.5 s; behind by 200 bytes, about 20 rows, in 1 of 1 streams, most in a",
        "query orders, batch 3: 10 rows in 1.5 s; up to date",
    ]
    assert lags == [[StreamLag("a", 200, 20)], [StreamLag("a", 0, 0)]]


def test_a_checkpoint(server: Server, tmp_path: Path) -> None:
    with Client(server.url) as client:
        stream = client.stream("progress/a")
        stream.create(messages=[1, 2, 3])
        begin = stream.splits(parts=1).offset
        for name in ("offsets", "commits"):
            (tmp_path / name).mkdir()
        assert lag(tmp_path, client) == []
        for batch, offset in enumerate((f"{begin}+2", stream.head().tail_offset)):
            places = json.dumps({"progress/a": offset, "progress/gone": begin})
            (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{places}\n-\n")
        (tmp_path / "commits" / "0").write_text("v1\n{}")
        assert lag(tmp_path, client) == [StreamLag("progress/a", 6, None)]
        (tmp_path / "commits" / "1").write_text("v1\n{}")
        assert lag(f"file://{tmp_path}", client) == [StreamLag("progress/a", 0, 0)]
        stream.append("x")
        assert lag(str(tmp_path), client) == [StreamLag("progress/a", 4, None)]
        behind = progress(source({}, {"progress/a": begin}, {"progress/a": begin}))
        assert lag(behind, client) == [StreamLag("progress/a", 10, None)]
        assert lag(behind) == [StreamLag("progress/a", 0, 0)]
    with pytest.raises(OptionError, match="needs a client"):
        lag(tmp_path)


def test_the_lag_of_a_stream_that_was_created_again() -> None:
    again = source({"a": at(0)}, {"a": at(10)}, {"a": at(30, 2)})
    assert [each.bytes for each in lag(progress(again))] == [30]


def test_a_query_without_a_finished_batch() -> None:
    assert lag(progress(source(None, None, None))) == []
    assert lag(progress(source(None, None, {"a": at(30)}))) == [StreamLag("a", 30, None)]
