"""The picture of the system at work."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools import recording
from tools.recording import PICTURE, READER, WRITER, Line, demo, picture, session

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_fetches_nothing() -> None:
    tree = ElementTree.fromstring(PICTURE.read_text())
    assert {element.tag for element in tree.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "style", "rect", "path", "text")
    }
    style = tree.find(f"{SVG}style")
    assert style is not None
    assert "url(" not in str(style.text)
    assert "@import" not in str(style.text)


def test_the_reader_got_what_the_writer_sent() -> None:
    lines = session()
    sent = [line.text.split("'")[1] for line in lines if line.pane == WRITER and " append " in line.text]
    got = [line.text for line in lines if line.pane == READER and line.text.startswith("data:[")]
    assert got == [f"data:[{message}]" for message in sent]
    assert sent


def test_long_lines_are_wrapped_and_markup_is_escaped() -> None:
    tree = ElementTree.fromstring(picture([Line(WRITER, "$ echo <&>"), Line(READER, "word " * 20)], ["$ make run"]))
    texts = [str(element.text).replace("\N{NO-BREAK SPACE}", " ") for element in tree.iter(f"{SVG}text")]
    assert "$ echo <&>" in texts
    assert [len(text.split()) for text in texts if text.startswith("word")] == [11, 9]


def test_of_the_demo_the_last_line_of_each_phase_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "$ make run      # twice",
        "It runs:",
        "",
        *(f"  {second}.0 s  shop {second}  Spark starting, {second}.0 s behind" for second in range(7)),
        f"  7.0 s  shop 7  Spark following, {'x' * 200}",
    ]
    monkeypatch.setattr(recording, "DEMO", tmp_path / "demo.txt")
    recording.DEMO.write_text("\n".join([*lines, "", "100 events", "  table   as expected", "plot: demo.png", ""]))
    command, starting, following, result = demo()
    assert (command, result) == ("$ make run", "  table   as expected")
    assert starting == "  6.0 s  shop 6  Spark starting, 6.0 s behind"
    assert following.startswith("  7.0 s  shop 7  Spark following, xxx")
    assert following.endswith("x …")
    assert len(following) == recording.WIDE_COLUMNS
