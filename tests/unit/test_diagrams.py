"""Diagrams are made from their texts."""

from __future__ import annotations

import pytest
from tools.diagrams import DIRECTORY, drawn, parse

TEXT = """Two boxes

a | b

a*: First / with <a line>
b: Second

a -> b: goes
"""


def test_the_pictures_are_those_of_the_texts() -> None:
    texts = sorted(DIRECTORY.glob("*.txt"))
    assert {path.stem for path in texts} == {path.stem for path in DIRECTORY.glob("*.svg")} != set()
    for path in texts:
        assert path.with_suffix(".svg").read_text() == drawn(path.read_text()), "run python -m tools.diagrams"


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
