"""The documentation names everything there is: limits, options, commands, problem types are not left to be guessed."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from headwater.cli import app
from headwater.limits import Limits
from headwater.server.routes import CONTROL, STREAM_ROOT

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


def test_every_limit_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", OPERATIONS, re.MULTILINE))
    units = {"MiB": 1024 * 1024, "KiB": 1024, "": 1}
    documented = {}
    for name, default in rows.items():
        number, _, unit = default.strip().replace(",", "").partition(" ")
        documented[name] = float(number) * units[unit]
    assert documented == {field.name: float(field.default) for field in msgspec.structs.fields(Limits)}


def test_every_command_and_option_is_documented() -> None:
    for command in ("serve", "check", "backup"):
        assert f"headwater {command}" in OPERATIONS
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in OPERATIONS, option


def test_every_control_api_is_documented() -> None:
    for name in CONTROL:
        assert f"{STREAM_ROOT}__ds/{name}" in PROTOCOL
