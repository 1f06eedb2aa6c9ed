"""The questions of docs/sql.md have the answers that the page shows."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.commands import run_command
from tests.docs.test_documentation import ROOT
from tests.edges import memory_server
from tests.waiting import LIMIT_S

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_answers_on_the_page_are_those_of_the_queries(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "sql.md").read_text())
    checked = 0
    with memory_server() as server, contextlib.chdir(tmp_path):
        environment = {**os.environ, "HEADWATER_URL": f"http://{server.host}:{server.port}"}
        _run_bash(blocks[0][1], environment)
        for (language, text), (following, answer) in zip(blocks[1:], [*blocks[2:], ("", "")], strict=True):
            if language != "bash":
                continue
            assert text.startswith("headwater sql "), text
            out = b""
            for query in text.removeprefix("headwater sql ").split("\nheadwater sql "):
                ran = run_command("sql", *shlex.split(query), environment=environment)
                assert ran.returncode == 0, f"{query}\n{ran.stderr.decode()}"
                out += ran.stdout
            if following == "text":
                assert out.decode() == answer, text
                checked += 1
    assert checked >= 10


def _run_bash(text: str, environment: dict[str, str]) -> None:
    """The block that makes the streams and the table."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-ec", text], env={**environment, "PATH": path}, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
