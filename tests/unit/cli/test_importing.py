"""What an import reads and changes, without files and servers."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headwater.cli.table import app
from headwater.cli.table.export import format_separated
from headwater.cli.table.importing import Format, check_delimiter, difference, read_rows
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import Action, Row

DEEP = "[" * 100_000 + "]" * 100_000


def read(text: str, form: Format = Format.CSV, escaping: Escape = Escape.NONE) -> dict[str, str]:
    return read_rows(io.StringIO(text, newline=""), form, "sku", escaping)


def row(key: str, record: str, action: Action = "+") -> Row:
    return Row(1, "2026-01-08T00:00:00Z", action, key, record)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (Format.CSV, "sku,name\n1,a\n1,b\n", "line 3: the key '1' is in line 2 as well"),
        (Format.CSV, "sku,name\n1,a,b\n", "line 2: 3 fields, and the first line has 2"),
        (Format.CSV, 'sku,name\n1,"two\nlines"\n2\n', "line 4: 1 fields"),
        (Format.CSV, "id,name\n1,a\n", "no column is named 'sku'; there are id, name"),
        (Format.CSV, "", "no column is named 'sku'; there are none"),
        (Format.CSV, "sku,sku\n1,a\n", "a column is named twice"),
        (Format.CSV, "sku,name\n,a\n", "line 2: 'sku' must be a text or an integer that is not empty"),
        (Format.CSV, 'sku,name\n1,"a\n', "unexpected end of data"),
        (Format.CSV, 'sku,name\n"a\tb",1\n', "line 2: there is a tab"),
        (Format.CSV, f"sku,name\n{'k' * 2000},1\n", "line 2: the key is longer than"),
        (Format.JSONL, '{"sku":1}\n[1]\n', "line 2: not a JSON object"),
        (Format.JSONL, f'{{"sku":1,"n":{DEEP}}}\n', "line 1: not a JSON object: JSON is nested too deeply"),
        (Format.JSONL, '{"sku":true}\n', "line 1: 'sku' must be"),
        (Format.JSONL, '{"name":"a"}\n', "line 1: 'sku' must be"),
    ],
)
def test_an_invalid_line_is_named(form: Format, text: str, said: str) -> None:
    with pytest.raises(ValueError, match="line ") as caught:
        read(text, form)
    assert said in str(caught.value)


def test_a_key_may_have_a_tab_where_the_table_escapes() -> None:
    assert read('sku,name\n"a\tb",1\n', escaping=Escape.BACKSLASH) == {"a\tb": '{"name":"1"}'}


def test_the_order_of_columns_and_white_space_are_no_change() -> None:
    changes = difference(read("sku,a,b\n1,x,y\n"), {"1": row("1", '{ "b": "y", "a": "x" }')})
    assert (changes.changes, changes.unchanged) == ([], 1)
    changes = difference({"1": "{}"}, {"1": row("1", "not JSON")})
    assert (changes.changes, changes.changed) == ([("+", "1", "{}")], 1)


@pytest.mark.parametrize(
    "number", ["1.10", "0.10000000000000000555", "12345678901234567.89", "1E400", "9" * 40, "-0.0"]
)
def test_numbers_stay_as_they_were_written(number: str) -> None:
    assert read(f'{{"sku":1,"price":[{number}]}}\n', Format.JSONL) == {"1": f'{{"price":[{number}]}}'}


@pytest.mark.parametrize(
    ("stored", "wanted", "changed"),
    [
        ('{"a":1}', '{"a":true}', 1),
        ('{"a":[0]}', '{"a":[false]}', 1),
        ('{"a":0.1}', '{"a":0.10000000000000000555}', 1),
        ('{"a":[1,2]}', '{"a":[1]}', 1),
        ('{"a":1.10}', '{"a":1.1}', 0),
        ('{"a":{"b":1}}', '{"a":{"b":1.0}}', 0),
    ],
)
def test_what_counts_as_changed(stored: str, wanted: str, changed: int) -> None:
    assert difference({"1": wanted}, {"1": row("1", stored)}).changed == changed


RECORDS = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.sampled_from(["1", "2", '{"a":1}']))


@given(RECORDS, RECORDS)
def test_the_changes_make_the_table_equal_to_the_file(wanted: dict[str, str], stored: dict[str, str]) -> None:
    changes = difference(wanted, {key: row(key, record) for key, record in stored.items()})
    for action, key, record in changes.changes:
        if action == "+":
            stored[key] = record
        else:
            del stored[key]
    assert stored == wanted
    assert changes.added + changes.changed + changes.unchanged == len(wanted)
    assert len(changes.changes) == changes.added + changes.changed + changes.deleted


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_of_csv_is_detected(delimiter: str) -> None:
    lines = [delimiter.join(fields) + "\n" for fields in (["sku", "price"], ["a", '"1,5;2|3"'])]
    assert read_rows(lines, Format.CSV, "sku", Escape.NONE) == {"a": '{"price":"1,5;2|3"}'}


def test_a_delimiter_may_be_given() -> None:
    assert read_rows(["sku~price\n", "a~1\n"], Format.CSV, "sku", Escape.NONE, "~") == {"a": '{"price":"1"}'}
    assert check_delimiter("\\t") == "\t"
    for wrong in ("", ";;", '"', "\n"):
        with pytest.raises(ValueError, match="one character"):
            check_delimiter(wrong)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_an_export_can_be_imported_again(delimiter: str) -> None:
    records = {"a": '{"name":"x, \\"y\\"; z","note":"two\\nlines"}', "b": '{"name":"","note":"é"}'}
    text = format_separated(records, "sku", delimiter)
    rows = read_rows(io.StringIO(text, newline=""), Format.CSV, "sku", Escape.NONE)
    assert difference(rows, {key: Row(1, "t", "+", key, record) for key, record in records.items()}).changes == []


def test_columns_of_an_export() -> None:
    assert (
        format_separated({"a": '{"n":1.50,"l":[1]}', "b": '{"t":"x"}'}, "key", ",") == "key,n,l,t\na,1.50,[1],\nb,,,x\n"
    )
    assert format_separated({"a": "free text"}, "key", ",") == "key,record\na,free text\n"
    deep = f'{{"n":{DEEP}}}'
    assert format_separated({"a": deep}, "key", "|") == f'key|record\na|"{deep.replace(chr(34), chr(34) * 2)}"\n'
    assert format_separated({}, "key", ",") == "key\n"
    with pytest.raises(ValueError, match="'b' is not"):
        format_separated({"a": "{}", "b": "text"}, "key", ",")
    with pytest.raises(ValueError, match="--key"):
        format_separated({"a": '{"key":1}'}, "key", ",")


@pytest.mark.parametrize("name", ["prices.xlsx", "prices.ODS"])
def test_a_spreadsheet_is_refused_with_a_hint(name: str) -> None:
    result = CliRunner().invoke(app, ["import", "t", name, "--key", "sku", "--format", "csv"])
    assert result.exit_code == 2
    assert "Save it as CSV" in result.output
