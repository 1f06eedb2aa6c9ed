"""The files that the documentation shows are accepted by what reads them. Text that a page leaves out is filled in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.server.auth.rules import parse_token, read_auth_file
from headwater.server.auth.scopes import parse_scopes
from tests.waiting import PROGRAM_LIMIT_S

DOCS = Path(__file__).resolve().parents[2] / "docs"
LEFT_OUT = {"k2fJ…": "A" * 43, "sha256:9f86…": f"sha256:{'0' * 64}", "hw_…": f"hw_{'x' * 43}"}


def toml_blocks(page: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


AUTH_FILES = [block for page in ("security.md", "operations.md") for block in toml_blocks(page) if "[[token]]" in block]


@pytest.mark.parametrize("block", AUTH_FILES)
def test_auth_files(block: str, tmp_path: Path) -> None:
    for shown, whole in LEFT_OUT.items():
        block = block.replace(shown, whole)
    file = tmp_path / "auth.toml"
    file.write_text(block)
    file.chmod(0o600)
    [entry] = read_auth_file(file).token
    assert parse_scopes(parse_token(entry).scopes)


def test_the_configuration_of_the_server(tmp_path: Path) -> None:
    [block] = [block for block in toml_blocks("operations.md") if "[[token]]" not in block]
    file = tmp_path / "headwater.toml"
    file.write_text(block)
    command = [sys.executable, "-m", "headwater", "serve", "--config", str(file), "--print-config"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    for name in re.findall(r"^(\w+) = ", block, re.MULTILINE):
        assert re.search(rf"{name}.*{re.escape(file.name)}", ran.stdout), (name, ran.stdout)


def test_there_are_files() -> None:
    assert len(AUTH_FILES) == 2
