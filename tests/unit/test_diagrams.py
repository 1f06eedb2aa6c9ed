"""Diagrams are made from their texts."""

from __future__ import annotations

import pytest
from tools.diagrams import drawn, parse

TEXT = """Two boxes

a | b

a*: First / with <a line>
b: Second

a -> b: goes
"""


def test_a_text_is_boxes_and_arrows() -> None:
    diagram = parse(TEXT)
    assert diagram.title == "Two boxes"
    assert [(box.name, box.about, box.strong) for box in diagram.boxes.values()] == [
        ("First", "with <a line>", True),
        ("Second", "", False),
    ]
    assert [(arrow.source, arrow.kind, arrow.target, arrow.label) for arrow in diagram.arrows] == [
        ("a", "->", "b", "goes")
    ]
    assert "with &lt;a line&gt;" in drawn(TEXT)


@pytest.mark.parametrize("wrong", [TEXT.replace("b: Second", ""), TEXT.replace("a -> b", "a -> c")])
def test_what_is_missing_is_an_error(wrong: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        drawn(wrong)
