"""Sizes, spans and retentions as the command line writes and reads them."""

from __future__ import annotations

from datetime import datetime

import pytest
import typer

from headwater.cli.retaining import (
    RetentionOptions,
    created_retention,
    parse_before,
    parse_count,
    parse_seconds,
    parse_size,
    retention_text,
    size_text,
    span_text,
)
from headwater.cli.trim import is_offset
from headwater.log.retention import Retention


@pytest.mark.parametrize(
    ("text", "value"), [("60", 60), ("90s", 90), ("90m", 5_400), ("36h", 129_600), ("7d", 604_800), ("0.5h", 1_800)]
)
def test_seconds(text: str, value: int) -> None:
    assert parse_seconds(text) == value
    assert parse_seconds(span_text(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1000", 1_000),
        ("10kB", 10_000),
        ("1.5 MB", 1_500_000),
        ("10GB", 10_000_000_000),
        ("2T", 2_000_000_000_000),
        ("64MiB", 67_108_864),
        ("1KiB", 1_024),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value
    assert parse_size(size_text(value).removesuffix("B")) == value


@pytest.mark.parametrize("text", ["", "x", "1.5s", "-1", "7w", "9" * 40])
def test_bad_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "10XB", "9" * 40, "1e3"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)


def test_counts() -> None:
    assert parse_count("1000") == 1_000
    with pytest.raises(ValueError, match="expected a number of messages"):
        parse_count("1k")


@pytest.mark.parametrize(
    ("retention", "text"),
    [
        (None, ""),
        (Retention(seconds=604_800), "7d"),
        (Retention(seconds=90, bytes=1_500), "90s, 1500B"),
        (Retention(messages=5, compact=True), "5 messages, compacted"),
        (Retention(compact=True, compact_after_s=3_600), "compacted after 1h"),
    ],
)
def test_texts(retention: Retention | None, text: str) -> None:
    assert retention_text(retention) == text


def test_options() -> None:
    assert RetentionOptions(None, None, None, None, None).changes() == {}
    named = RetentionOptions("7d", "1kB", "none", None, None)
    assert named.changes() == {"seconds": 604_800, "bytes": 1_000, "messages": None}
    assert created_retention(named) == Retention(seconds=604_800, bytes=1_000)
    assert RetentionOptions(None, None, None, False, None).changes() == {"compact": False, "compact_after_s": None}
    assert created_retention(RetentionOptions(None, None, None, None, None)) is None
    assert created_retention(RetentionOptions("none", None, None, None, None)) == Retention()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (RetentionOptions("x", None, None, None, None), "--seconds"),
        (RetentionOptions(None, "10 apples", None, None, None), "--bytes"),
        (RetentionOptions(None, None, "1k", None, None), "--messages"),
        (RetentionOptions(None, None, None, True, "soon"), "--compact-after"),
    ],
)
def test_bad_options_are_named(options: RetentionOptions, hint: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        options.changes()
    assert error.value.param_hint == hint


def test_where_a_trim_ends() -> None:
    offset = "0000000000000001_0000000000000005"
    for text in (offset, "now", "-1"):
        assert parse_before(text, is_offset, "an offset") == text
    for text in ("2d", "2030-01-01T00:00:00Z"):
        assert isinstance(parse_before(text, is_offset, "an offset"), datetime)
    for text in ("yesterday", "5", "-2", "2030-01-01T00:00:00", offset[:-1]):
        with pytest.raises(typer.BadParameter, match="an offset, now, or a time"):
            parse_before(text, is_offset, "an offset")
