"""The documentation names everything there is: limits, options, commands, problem types are not left to be guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater import errors
from headwater.cli import failing
from headwater.cli.pipeline import exit_codes
from headwater.server.auth.rules import AuthFile, IssuerEntry, RemoteEntry, TokenEntry
from headwater.server.auth.scopes import Action
from headwater.server.routes import ROUTES
from tests.command_line import command

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (ROOT / "docs" / "reference" / "options.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
BACKUP = (ROOT / "docs" / "backup.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()
CLIENT = (ROOT / "docs" / "client.md").read_text()
PIPELINE = (ROOT / "docs" / "pipeline.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
WORKERS = (ROOT / "docs" / "workers.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


# Where commands are described: their names, and their options. Others are in docs/cli.md.
PAGES = {
    "backup": (BACKUP, BACKUP),
    "check": (OPERATIONS, OPERATIONS),
    "copy": (OPERATIONS, OPERATIONS),
    "pipeline": (PIPELINE, PIPELINE),
    "promote": (BACKUP, BACKUP),
    "restore": (BACKUP, BACKUP),
    "serve": (OPERATIONS, OPERATIONS + OPTIONS),
    "subscription": (WORKERS, CLI + WORKERS),
    "token": (SECURITY, SECURITY),
    "work": (WORKERS, CLI + WORKERS),
}


def commands(part: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with its words."""
    for name, inner in part.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, *path, name)
        else:
            yield (*path, name), inner


def test_every_command_and_option_is_documented() -> None:
    for path, part in commands(command):
        names, options = PAGES.get(path[0], (CLI, CLI))
        words = " ".join(path)
        assert f"headwater {'backup' if words == 'backup run' else words}" in names
        shown = [param for param in part.params if not getattr(param, "hidden", False)]
        for option in {flag for param in shown for flag in param.opts + param.secondary_opts if flag.startswith("--")}:
            assert option in options, f"{words} {option}"


def test_every_action_of_a_scope_and_key_of_the_auth_file_is_documented() -> None:
    for action in Action:
        assert f"| `{action}` |" in SECURITY
    for entry in (AuthFile, TokenEntry, IssuerEntry, RemoteEntry):
        for name in entry.__struct_fields__:
            assert re.search(rf"\b{name}\b", SECURITY), name


def test_every_exit_code_of_the_pipeline_is_documented() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", PIPELINE, re.MULTILINE)}


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(failing).items() if name.isupper() and isinstance(value, int)}
    assert {0, *codes} == {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}


def test_every_error_a_client_meets_is_documented() -> None:
    for kind in (
        *errors.ClientError.__subclasses__(),
        errors.ServerError,
        errors.ConflictError,
        errors.StaleEpochError,
    ):
        assert kind.__name__ in CLIENT


def test_every_control_api_is_documented() -> None:
    for route in ROUTES:
        assert route.template.removesuffix("{path}") in PROTOCOL
