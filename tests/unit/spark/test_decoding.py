"""Values of state events by schemas: one for all types, one for each type, deletes and old values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headwater.errors import OptionError
from headwater.spark.columns import values_type
from headwater.spark.decoding import Events
from headwater.spark.options import StateReadOptions, read_options

USER = StructType([StructField("name", StringType())])
ITEM = StructType([StructField("left", IntegerType())])


def change(kind: str, operation: str = "insert", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "key": "k", **fields, "headers": {"operation": operation}}


def decoded(schema: StructType, *events: dict[str, Any], by_type: bool = False) -> list[dict[str, Any]]:
    options = StateReadOptions(url="", value_schema={"user": "name STRING"} if by_type else None)
    rows: list[dict[str, Any]] = Events(schema, options).decode_array(json.dumps(events).encode()).to_pylist()
    return rows


def test_values_by_type() -> None:
    kinds = StructType([StructField("user", USER), StructField("item", ITEM)])
    rows = decoded(
        StructType([StructField("value", kinds)]),
        change("user", value={"name": "Ada"}),
        change("item", value={"left": 3, "name": 7}),
        change("other", value={"name": 7}),
        change("item", value={"left": "many"}),
        change("user", "delete", value={"name": 7}),
        {"headers": {"control": "reset"}},
        by_type=True,
    )
    assert [row["value"] for row in rows[:3]] == [
        {"user": {"name": "Ada"}, "item": None},
        {"user": None, "item": {"left": 3}},
        None,
    ]
    assert "the value does not fit the schema" in rows[3]["bad"]
    assert [row["bad"] for row in (*rows[:3], *rows[4:])] == [None] * 5
    assert [row["value"] for row in rows[4:]] == [None, None]


def test_deletes_and_old_values_are_never_bad() -> None:
    """The value of a delete is ignored, and an old value is only informative."""
    schema = StructType([StructField("value", USER), StructField("old_value", USER)])
    rows = decoded(
        schema,
        change("user", "delete", value=[1], old_value={"name": 7}),
        change("user", "update", value={"name": "Ada"}, old_value={"name": "Eva"}),
    )
    assert [row["bad"] for row in rows] == [None, None]
    assert [(row["value"], row["old_value"]) for row in rows] == [(None, None), ({"name": "Ada"}, {"name": "Eva"})]
    [row] = decoded(StructType([StructField("value", StringType())]), change("user", "delete", value=[1]))
    assert row["value"] is None


def test_the_option_value_schema() -> None:
    def schema(**texts: str) -> Any:
        texts = {name.replace("_", "."): value for name, value in texts.items()}
        options = read_options({"url": "http://h", "streams": "s", **texts}, bounded=False)
        return options.value_schema if isinstance(options, StateReadOptions) else None

    assert schema() is None
    assert values_type(schema()) == "STRING"
    assert values_type(schema(valueSchema="a INT")) == "STRUCT<a INT>"
    by_type = "STRUCT<`user`: STRUCT<a INT>, `Big`: STRUCT<b INT>>"
    assert values_type(schema(valueSchema='{"user": "a INT", "Big": "b INT"}')) == by_type
    assert schema(valueSchema_user="a INT", valueschema_item="b INT") == {"user": "a INT", "item": "b INT"}
    with pytest.raises(OptionError, match=r"for all, or valueSchema\.NAME for each"):
        schema(valueSchema="a INT", valueSchema_user="a INT")
    with pytest.raises(OptionError, match="JSON by type"):
        schema(valueSchema='{"user": 1}')
    with pytest.raises(OptionError, match="did you mean valueSchema"):
        schema(valueSchemas="a INT")


_CHANGES = (
    change("user", value={"name": "Ada"}),
    change("user", "delete"),
    change("user", "delete", value={"name": "Eva"}, old_value={"name": "Zoë"}),
    change("item", "upsert", value=None, old_value=[1]),
    change("user", "update"),
    {**change("item", value="x"), "headers": {"operation": "insert", "txid": "t", "trace": 1}},
)


@pytest.mark.parametrize("delete_values", [False, True])
@pytest.mark.parametrize("count", range(1, len(_CHANGES) + 1))
def test_changes_alone_are_decoded_as_among_other_events(count: int, delete_values: bool) -> None:
    names = ("type", "key", "operation", "value", "old_value", "txid", "control")
    schema = StructType([StructField(name, StringType()) for name in names])
    for changes in (_CHANGES[:count], _CHANGES[count - 1 :]):
        texts = [json.dumps(events).encode() for events in (changes, [*changes, {"headers": {"control": "reset"}}])]
        decoder = Events(schema, StateReadOptions(url="", delete_values=delete_values), sized=True)
        alone, among = (decoder.decode_array(text).to_pylist() for text in texts)
        kept = [row.keys() & {*names, "bad", "size"} for row in alone]
        assert [{name: row[name] for name in wanted} for row, wanted in zip(alone, kept, strict=True)] == [
            {name: row[name] for name in wanted} for row, wanted in zip(among[:-1], kept, strict=True)
        ]
        assert [row["size"] for row in alone] == [len(json.dumps(event)) + 1 for event in changes]


def test_bad_events_have_the_type_and_key_that_they_name() -> None:
    schema = StructType([StructField(name, StringType()) for name in ("type", "key", "operation")])
    rows = decoded(
        schema,
        {"type": "item", "key": "a", "value": 1, "headers": {"operation": "paint"}},
        {"type": "item", "value": 1, "headers": {"operation": "insert"}},
        {"type": 7, "key": "", "value": 1, "headers": {"operation": "insert"}},
        {"value": 1},
    )
    assert [(row["type"], row["key"]) for row in rows] == [("item", "a"), ("item", None), (None, None), (None, None)]
    assert all(row["bad"] for row in rows)
