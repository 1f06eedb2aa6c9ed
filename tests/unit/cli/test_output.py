from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.output import shown

CLI = Path(__file__).resolve().parents[3] / "src" / "headwater" / "cli"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prices/a[/x]", "prices/a[/x]"),
        ("gr\u00fc\u00df \u4ef7\u683c \U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u0631\u0648\u0645", None),
        ("\x1b[2J\x07", r"\u001b[2J\u0007"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x7f\x9b31m", r"\u007f\u009b31m"),
        ("\u202etxt\u2066\u2069\u200f\u061c", r"\u202etxt\u2066\u2069\u200f\u061c"),
        ("\u2028\u2029\ufeff", r"\u2028\u2029\ufeff"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\udb40\udc41"),
    ],
)
def test_what_is_shown(text: str, expected: str | None) -> None:
    assert shown(text) == (text if expected is None else expected)


def test_a_text_keeps_its_line_ends() -> None:
    assert shown("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\u001b"


@given(st.text(st.characters(codec=None)))
def test_no_control_character_is_shown(text: str) -> None:
    unsafe = {char for char in shown(text) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert unsafe <= {"\u200c", "\u200d"}


@given(st.text(st.characters(codec="utf-8")))
def test_json_that_is_shown_is_the_same_json(text: str) -> None:
    assert json.loads(shown(json.dumps(text, ensure_ascii=False))) == text


def test_everything_is_printed_through_one_module() -> None:
    """A name from a server that is printed elsewhere would reach the terminal as it is."""
    for file in CLI.rglob("*.py"):
        if file.name != "output.py":
            text = file.read_text()
            assert not re.search(
                r"typer\.(echo|secho|style)|\bprint\(|stdout\.(buffer|write)", re.sub(r"\.print\(", "", text)
            ), file
            for argument in re.findall(r"(?:console\.print|\.status|status\.update)\((.*)", text):
                assert argument.startswith(("Text(", "self", 'f"', "told", '"', "_board")), f"{file}: {argument}"
