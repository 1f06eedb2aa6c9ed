"""The commands, and what the program imports for one of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.cli import COMMANDS
from tests.command_line import command, invoke
from tests.waiting import PROGRAM_LIMIT_S


def test_every_command_is_there() -> None:
    assert set(command.commands) == set(COMMANDS)


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, part in getattr(command, "commands", {}).items():
        yield from _paths(part, (*path, name))


def test_help_shows_no_type_of_flags_and_defaults_as_they_are_typed() -> None:
    for path in _paths(command):
        shown = invoke([*path, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}).output
        assert "--help" in shown, path
        assert "<bool>" not in shown, path
        assert "[default: (" not in shown, path


@pytest.mark.parametrize("name", ["read", "table"])
def test_commands_of_a_client_import_no_server(name: str) -> None:
    program = f"""if True:
        import sys
        from headwater.cli import main
        sys.argv = ["headwater", "{name}", "--help"]
        try:
            main()
        except SystemExit:
            pass
        print(*[module for module in sys.modules if module.startswith("headwater.server")], file=sys.stderr)
    """
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=True
    )
    assert f"headwater {name}" in ran.stdout
    assert ran.stderr.split() == []


@pytest.mark.parametrize(
    ("program", "unused"),
    [
        ("headwater --version", "headwater.store headwater.client headwater.cli.connecting rich httpx sqlite3 asyncio"),
        ("headwater append --help", "headwater.store headwater.client httpx sqlite3 asyncio"),
        ("headwater serve --help", "headwater.store.embedded headwater.client headwater.server.serve httpx sqlite3"),
        ("import headwater.client", "headwater.client.aio asyncio"),
        ("import headwater.state", "headwater.client.aio headwater.state.aio asyncio"),
        ("import headwater.server.serve", "headwater.client headwater.cli httpx httpcore rich"),
    ],
)
def test_a_program_imports_no_more_than_it_needs(program: str, unused: str) -> None:
    """`bench/startup_bench.py` measures what this saves."""
    as_command = f"sys.argv = {program.split()}; from headwater.cli import main; main()"
    runs = as_command if program.startswith("headwater ") else program
    text = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {runs}"
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=True
    )
    imported = set(ran.stderr.split())
    assert "headwater" in imported
    assert imported & set(unused.split()) == set()


def test_a_mistyped_command_gets_a_suggestion() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "headwater", "raed"],
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 2
    assert "Did you mean 'read'" in ran.stderr


def test_help_shows_defaults_as_they_are_typed() -> None:
    for arguments in (["read"], ["follow"], ["table", "read"], ["table", "tail"], ["table", "notify"]):
        shown = invoke([*arguments, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        assert "[default: (" not in shown
        assert "Default: " in shown
