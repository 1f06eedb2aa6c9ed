"""Options of jobs as keyword arguments: what the structs say holds for the functions, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from headwater import pipeline
from headwater.cli.pipeline.config import KINDS
from headwater.errors import OptionError

SERVER = "http://127.0.0.1:4437"
READING = {"url": SERVER, "streams": "a", "table": "t"}
PUBLISHING = {"url": SERVER, "table": "t", "keys": ["k"], "to": "a", "type": "t"}


@pytest.mark.parametrize("name", KINDS)
def test_a_function_has_the_options_of_its_struct(name: str) -> None:
    parameters = inspect.signature(getattr(pipeline, name)).parameters
    assert list(parameters) == ["spark", *KINDS[name].__struct_fields__]
    assert parameters["url"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (pipeline.archive, {**READING, "retain_hours": 0}, "retain_hours: Expected `int` >= 1, got 0"),
        (pipeline.archive, {**READING, "max_records": 0}, "max_records: Expected `int` >= 1, got 0"),
        (pipeline.archive, {**READING, "every_s": 0}, "every_s: Expected `float` > 0.0, got 0"),
        (pipeline.materialize, {**READING, "path": "heap"}, "path: Expected `str` matching regex"),
        (pipeline.materialize, {**READING, "stored_as_scd_type": 3}, "stored_as_scd_type: Expected `int` <= 2, got 3"),
        (pipeline.materialize, {**READING, "stored_as_scd_type": "3"}, "stored_as_scd_type: Expected `str` matching"),
        (pipeline.materialize, {**READING, "buckets": 65_537}, "buckets: Expected `int` <= 65536, got 65537"),
        (pipeline.materialize, {**READING, "keys": "a"}, "keys names fields of the value, so it needs a schema"),
        (pipeline.materialize, {**READING, "track_history_column_list": ["a"]}, "is for a history"),
        (pipeline.publish, {**PUBLISHING, "table": None}, "set table, a Delta table"),
        (pipeline.publish, {**PUBLISHING, "keys": []}, "keys is missing"),
        (pipeline.publish, {**PUBLISHING, "columns": "a", "value_column": "b"}, "set either columns or value_column"),
        (pipeline.publish, {**PUBLISHING, "apply_as_deletes": "x"}, "apply_as_deletes is for rows"),
        (pipeline.publish, {**PUBLISHING, "type": None}, "to needs type"),
        (pipeline.snapshot, {"url": SERVER, "streams": "a", "grace_s": -1}, "grace_s: Expected `float` >= 0.0, got -1"),
    ],
)
def test_invalid_options(function: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        function(None, **options)
    assert message in str(caught.value)


def test_unknown_and_missing_options() -> None:
    archive: Callable[..., Any] = pipeline.archive
    with pytest.raises(TypeError, match="streems"):
        archive(None, **READING, streems="a")
    with pytest.raises(TypeError, match="table"):
        archive(None, url=SERVER, streams="a")
