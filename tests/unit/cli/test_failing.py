from __future__ import annotations

import errno
import re
import sqlite3
from pathlib import Path

import pytest
import typer

from headwater import errors
from headwater.cli import failing
from headwater.cli.failing import failures
from headwater.cli.table import app as tables
from headwater.store.embedded.journal import UnknownFormatError
from headwater.store.embedded.locking import DirectoryInUseError
from tests.command_line import app, invoke


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data"), 1, "/data: Permission denied. Use another path"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), 1, "/data/x: No space left on device. Make room"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device. Make room"),
        (
            OSError(errno.EIO, "Input/output error", "/data"),
            1,
            "/data: Input/output error. Check the path and the disk.",
        ),
        (DirectoryInUseError(errno.EBUSY, "in use by process 7", "/data"), 1, "in use by process 7. Stop that process"),
        (UnknownFormatError("/data has 'x'"), 1, "/data has 'x'. Use another directory, or the version"),
        (sqlite3.OperationalError("database or disk is full"), 1, "is full. Check the disk, then: headwater check"),
        (errors.StreamNotFoundError("stream 'a\x1b[2J\nb'"), 3, r"stream 'a\u001b[2J\nb'. Create the stream"),
        (errors.NetworkError("ReadError"), 6, "ReadError. Check the URL and that the server runs. The request may"),
        (ValueError("a path cannot be empty"), 2, "a path cannot be empty. Correct it"),
        (OSError(), 1, ""),
    ],
)
def test_every_error_is_one_line_with_a_way_out(
    error: Exception, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as exit_, failures():
        raise error
    said = capsys.readouterr().err
    assert exit_.value.exit_code == code
    assert said.startswith("headwater: ")
    assert says in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_every_error_of_ours_has_a_way_out() -> None:
    def below(kind: type[errors.HeadwaterError]) -> list[type[errors.HeadwaterError]]:
        return [kind, *(below_it for child in kind.__subclasses__() for below_it in below(child))]

    for kind in below(errors.HeadwaterError):
        what, way_out = failing.described(kind())
        assert what
        assert way_out.endswith((".", "check, and restore it from a backup."))


def commands() -> list[tuple[str, ...]]:
    own = [(str(command.name),) for command in app.registered_commands]
    return [(), *own, ("table",), *(("table", str(command.name)) for command in tables.registered_commands)]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_two_names(command: tuple[str, ...]) -> None:
    for option in ("-h", "--help"):
        result = invoke([*command, option])
        assert result.exit_code == 0
        assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["raed", "x"], r"No such command 'raed'.* See: headwater --help"),
        (["read"], r"Missing argument .* See: headwater read --help"),
        (["table", "read", "x", "--sinceid", "3"], r"No such option.* See: headwater table read --help"),
        (
            ["table", "import", "x", "f.csv", "--key", "k", "--format", "xml"],
            r"'--format': 'xml' is not one of 'csv', 'tsv', 'jsonl'",
        ),
        (["table", "import", "x", "f.xml", "--key", "k"], r"f.xml names no format. Add --format csv, tsv or jsonl."),
        (["read", "x", "--offset", "1", "--since", "1h"], r"Give one of them."),
        (["create", "x", "--view-of", "t"], r"a view needs both --view-of and --type. See: headwater create --help"),
        (["table", "create", "x", "--type", "t"], r"needs both .* See: headwater table create --help"),
        (["list", "--url", ""], r"for example http://127.0.0.1:4437"),
        (["create", ""], r"a stream's path cannot be empty"),
        (["create", "../x"], r"a path segment cannot be '..'"),
        (["table", "create", "a/../x"], r"a path segment cannot be '..'"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], says: str) -> None:
    result = invoke(arguments)
    assert result.exit_code == failing.WRONG_CALL
    assert re.search(says, result.output)
    assert result.output.count("\n") == 1


def test_a_locked_or_foreign_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("something else")
    result = invoke(["serve", "--port", "0", "--data-dir", str(tmp_path)])
    assert result.exit_code == failing.FAILED
    assert "is not empty and not a Headwater data directory. Use another directory" in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("http://h/v1/stream/prices", ": headwater create prices"),
        ("http://h/app/v1/table/prices", ": headwater table create prices"),
        ("http://h/v1/stream/a%20b?offset=now", ": headwater create 'a b'"),
        ("http://h/v1/strem/prices", "streams are below /v1/stream/, tables below /v1/table/"),
    ],
)
def test_the_advice_for_a_missing_stream_depends_on_its_url(url: str, way_out: str) -> None:
    error = errors.StreamNotFoundError()
    error.url = url
    assert failing.described(error)[1].endswith(way_out)


def test_a_demo_whose_server_does_not_start_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "streams").write_text("not a directory")
    result = invoke(["demo", "--port", "0", "--seconds", "1", "--data-dir", str(tmp_path)])
    assert result.exit_code == failing.FAILED
    lines = f"{capfd.readouterr().err}{result.output}".splitlines()
    assert [line.endswith("Not a directory. Give the path of a directory.") for line in lines] == [True]
