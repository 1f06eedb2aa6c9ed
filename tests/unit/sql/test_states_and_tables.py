"""The current entities of streams, tables, Delta tables and files, joined with each other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import write_deltalake

from headwater.client import Client, Put, Remove
from headwater.errors import SqlError
from tests.unit.sql.conftest import Ask


def event(kind: str, key: str, operation: str, value: Any = None) -> dict[str, Any]:
    made = {"type": kind, "key": key, "headers": {"operation": operation}}
    return made if operation == "delete" else {**made, "value": value}


def test_the_entities_of_a_type_are_columns(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create(
        messages=[
            event("order", "1", "insert", {"id": "1", "total": 5, "key": "own"}),
            event("order", "2", "insert", {"id": "2", "total": 2**53 + 1}),
            event("other", "1", "insert", {"x": 1}),
        ]
    )
    before = stream.head().tail_offset
    stream.append(event("order", "2", "update", {"id": "2", "total": 7.5}))
    stream.append(event("order", "1", "delete"))
    assert ask(f"SELECT key, id, total FROM state('{prefix}', 'order')") == [("2", "2", 7.5)]
    rows = ask(f"SELECT key, total, key_1 FROM state('{prefix}', 'order', at := '{before}') ORDER BY key")
    assert rows == [("1", 5, "own"), ("2", 2**53 + 1, None)]
    assert ask(f"SELECT count(*) FROM state('{prefix}', 'order', at := '1d')") == [0]
    assert ask(f"SELECT a.total, _value FROM state('{prefix}', 'order') a") == [(7.5, '{"id":"2","total":7.5}')]
    assert ask(f"SELECT type, count(*) FROM '{prefix}' GROUP BY ALL ORDER BY ALL") == [("order", 4), ("other", 1)]


def test_all_entities_decide_on_the_types(client: Client, ask: Ask, prefix: str) -> None:
    values = [{"n": number} for number in range(25_000)] + [{"n": "text"}]
    stream = client.stream(prefix)
    stream.create()
    for first in range(0, len(values), 5000):
        part = enumerate(values[first : first + 5000], first)
        stream.append_many([event("a", str(number), "upsert", value) for number, value in part])
    assert ask(f"SELECT count(*), max(n) FROM state('{prefix}', 'a')") == [(25_001, "text")]


def test_entities_that_are_no_objects(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[event("a", "k", "insert", 5), event("a", "l", "insert", "x")])
    assert ask(f"SELECT key, value FROM state('{prefix}', 'a') ORDER BY key") == [("k", "5"), ("l", '"x"')]


def test_a_type_that_a_stream_does_not_have(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[event("order", "1", "insert", {"id": "1"})])
    with pytest.raises(SqlError, match="has no entities of type 'Order'; the name of a type is case-sensitive"):
        ask(f"FROM state('{prefix}', 'Order')")
    client.stream(f"{prefix}/text").create(content_type="text/plain")
    with pytest.raises(SqlError, match="is a stream of text/plain; state events are JSON"):
        ask(f"FROM state('{prefix}/text', 'a')")


def test_a_table_is_its_active_rows(client: Client, ask: Ask, prefix: str) -> None:
    prices = client.table(prefix)
    prices.create(schema="json")
    prices.append([Put("tea", '{"eur": 2.5}'), Put("oil", '{"eur": 9, "per": "l"}'), Remove("tea")])
    prices.append([Put("tea", '{"eur": 3}')])
    assert ask(f"SELECT key, eur, per, seqno FROM {prefix} ORDER BY key") == [
        ("oil", 9.0, "l", 2),
        ("tea", 3.0, None, 4),
    ]
    assert ask(f"SELECT action, eur FROM table('{prefix}', history := true)") == [
        ("+", 2.5),
        ("+", 9),
        ("-", None),
        ("+", 3),
    ]
    (moment,) = ask(f"SELECT max(timestamp) FROM table('{prefix}')")
    assert (datetime.now(UTC) - moment).total_seconds() < 60
    text = client.table(f"{prefix}-text")
    text.create()
    assert ask(f"SELECT count(*), max(record) FROM '{prefix}-text'") == [(0, None)]
    text.append([Put("a", "not {json}")])
    assert ask(f"SELECT key, record FROM '{prefix}-text'") == [("a", "not {json}")]
    client.stream(prefix).create(messages=[{"n": 1}])
    with pytest.raises(SqlError, match=f"write stream\\('{prefix}'\\) or table\\('{prefix}'\\)"):
        ask(f"FROM {prefix}")


def test_delta_tables_and_files(client: Client, ask: Ask, prefix: str, tmp_path: Path) -> None:
    path = str(tmp_path / "lake")
    write_deltalake(path, pa.table({"id": ["1", "2"], "city": ["Ghent", "Porto"]}))
    client.stream(prefix).create(messages=[event("c", "1", "insert", {"id": "1"})])
    joined = f"SELECT city FROM delta('{path}') JOIN state('{prefix}', 'c') USING (id)"
    assert ask(joined) == ["Ghent"]
    assert ask(f"SELECT count(*) FROM '{path}'") == [2]
    file = tmp_path / "regions.parquet"
    ask_to_file = pa.table({"city": ["Ghent"], "region": ["Flanders"]})
    pa.parquet.write_table(ask_to_file, file)
    assert ask(f"SELECT region FROM '{file}' JOIN ({joined}) USING (city)") == ["Flanders"]
