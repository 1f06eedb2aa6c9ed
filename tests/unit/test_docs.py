"""The documentation names everything there is: limits, options, commands, problem types are not left to be guessed."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from headwater import errors
from headwater.cli import failing
from headwater.cli.backup import app as backups
from headwater.cli.pipeline import app as pipelines
from headwater.cli.pipeline import exit_codes
from headwater.cli.subscription import app as subscriptions
from headwater.cli.table import app as tables
from headwater.cli.token import app as tokens
from headwater.cli.whole import app
from headwater.server.auth.rules import AuthFile, IssuerEntry, RemoteEntry, TokenEntry
from headwater.server.auth.scopes import Action
from headwater.server.routes import ROUTES

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


def test_every_command_and_option_is_documented() -> None:
    commands = [command.name for command in app.registered_commands]
    assert {"serve", "create", "append", "read", "tail", "head", "list", "close", "fork", "delete", "bench"} <= {
        *commands
    }
    for command in commands:
        pages = {"serve": OPERATIONS + OPTIONS, "check": OPERATIONS, "restore": BACKUP, "promote": BACKUP}
        text = (pages | {"work": CLI + WORKERS}).get(str(command), CLI)
        assert f"headwater {command}" in text
        shown = CliRunner().invoke(app, [str(command), "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in text, f"{command} {option}"


def test_every_option_of_backups_is_documented() -> None:
    for command in backups.registered_commands:
        name = str(command.name or getattr(command.callback, "__name__", ""))
        assert f"headwater backup {name}".removesuffix(" run") in BACKUP
        arguments = ["backup", name, "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in BACKUP, f"{name} {option}"


def test_every_command_and_option_of_tables_is_documented() -> None:
    for command in tables.registered_commands:
        assert f"headwater table {command.name}" in CLI
        arguments = ["table", str(command.name), "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in CLI, f"{command.name} {option}"


def test_every_command_and_option_of_subscriptions_is_documented() -> None:
    for command in subscriptions.registered_commands:
        assert f"headwater subscription {command.name}" in WORKERS
        arguments = ["subscription", str(command.name), "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in CLI + WORKERS, f"{command.name} {option}"


def test_every_command_and_option_of_tokens_is_documented() -> None:
    for command in tokens.registered_commands:
        assert f"headwater token {command.name}" in SECURITY
        arguments = ["token", str(command.name), "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in SECURITY, f"{command.name} {option}"


def test_every_action_of_a_scope_and_key_of_the_auth_file_is_documented() -> None:
    for action in Action:
        assert f"| `{action}` |" in SECURITY
    for entry in (AuthFile, TokenEntry, IssuerEntry, RemoteEntry):
        for name in entry.__struct_fields__:
            assert re.search(rf"\b{name}\b", SECURITY), name


def test_every_command_and_option_of_the_pipeline_is_documented() -> None:
    for command in pipelines.registered_commands:
        assert f"headwater pipeline {command.name}" in PIPELINE
        arguments = ["pipeline", str(command.name), "--help"]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"}).output
        for option in set(re.findall(r"(--[a-z-]+)", shown)) - {"--help"}:
            assert option in PIPELINE, f"{command.name} {option}"


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
