"""Log records: nothing in one can pass for another one, reach a terminal, or be a secret."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from headwater.server.observing.logs import HumanFormatter, JsonFormatter, configure

FORGED = "a\n2026-11-16T00:00:00.000Z CRITICAL headwater: all is lost\r\x1b[2J\x9b31m\x7f\u2028\u202e"


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("headwater.server", logging.WARNING, "", 1, message, arguments, info)


def raised(message: str) -> Exception:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_line_for_people_is_one_line() -> None:
    line = HumanFormatter().format(record("path %s", FORGED))
    assert line.isprintable()
    assert " WARNING headwater.server: path a\\n2026" in line


def test_letters_of_other_languages_are_left_as_they_are() -> None:
    assert HumanFormatter().format(record("größer 数")).endswith("größer 数")


def test_the_lines_of_a_traceback_are_indented() -> None:
    first, *others = HumanFormatter().format(record("failed", error=raised(FORGED))).split("\n")
    assert first.endswith("failed")
    assert others
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_a_json_record_is_one_line_and_has_everything() -> None:
    line = JsonFormatter().format(record("path %s", FORGED, error=raised(FORGED)))
    assert line.isascii()
    assert line.isprintable()
    entry = json.loads(line)
    assert entry["message"] == f"path {FORGED}"
    assert (entry["level"], entry["logger"]) == ("warning", "headwater.server")
    assert FORGED in entry["exception"]


def test_libraries_that_log_headers_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure(logging.DEBUG, "json")
        logging.getLogger("httpcore.http11").debug("send_request_headers authorization: Bearer secret")
        logging.getLogger("headwater.server").debug("seen")
        lines = capsys.readouterr().err
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "secret" not in lines
    assert json.loads(lines)["message"] == "seen"


def test_a_standard_error_that_is_closed_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    closed = open("/dev/null", "w")  # noqa: SIM115
    closed.close()
    try:
        configure(logging.WARNING)
        monkeypatch.setattr(sys, "stderr", closed)
        logging.getLogger("headwater.server").warning("nobody reads this")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
