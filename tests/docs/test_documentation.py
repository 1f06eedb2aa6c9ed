"""Every command in the documentation is run, in the order of the page, and then its Python, as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.servers import Server, headwater

from tests.edges import free_port
from tests.postgres import postgres

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\s*\$?\s*(headwater|make|curl|uvicorn|granian|hypercorn|pip|python\S*) \S", re.MULTILINE)
ENDLESS = re.compile(
    r"^(headwater serve|headwater tail|headwater follow|headwater backup .* --follow|bash follow.sh|curl -N|"
    r"uvicorn|granian|hypercorn)\b"
)
SERVER = re.compile(r"^(?:headwater serve|uvicorn|granian|hypercorn)\b.* (?:--port |--bind \S+:)(\d+)")
ENDED_BY_TIMEOUT, ENDED_BY_SIGTERM = 124, 143
BLOCK_LIMIT_S = 600  # only a test that fails reaches it
DATABASE = "postgresql://headwater@db.example/streams"
QUICK = ("README.md", "CONTRIBUTING.md", "tutorial.md", "client.md", "state.md", "schemas.md")  # the others are slow
RUN = [
    page if page.name in QUICK else pytest.param(page, marks=pytest.mark.slow)
    for page in PAGES
    if re.search(r"^```(bash|python)$", page.read_text(), re.MULTILINE)
]


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    with headwater("--data-dir", str(tmp_path / "headwater-data"), "--limit", "long_poll_s=1") as server:
        yield server


@pytest.mark.timeout(6 * BLOCK_LIMIT_S)
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs(page: Path, durable: Server, tmp_path: Path) -> None:
    parts = [(language, _here(text, durable)) for language, text in blocks(page)]
    work = tmp_path / "work"
    work.mkdir()
    for language, text in parts:
        if language == "bash":
            assert _run_bash(text, work, durable)
    _run_python("\n".join(text for language, text in parts if language == "python"), work)


def _here(text: str, server: Server) -> str:
    """The same block against the test's server and database instead of those that the pages name."""
    text = text.replace("127.0.0.1:4437", f"{server.host}:{server.port}")
    if DATABASE in text:
        text = text.replace(DATABASE, postgres().clean_database())
    text = re.sub(r"^headwater serve (?=--store )", "headwater serve --port 0 ", text, flags=re.MULTILINE)
    return re.sub(r"(--port |--bind 127.0.0.1:)\d+", lambda option: f"{option[1]}{free_port()}", text)


def _run_bash(text: str, directory: Path, server: Server) -> int:
    """Run the lines of a block in one shell. Servers are stopped when they accept connections, other commands that
    would go on for ever after two seconds."""
    script = ["set -e"]
    count = 0
    for line in text.replace("\\\n", " ").splitlines():
        count += bool(COMMAND.search(line) or "|" in line)
        if line.startswith("headwater demo"):  # tests/spark runs it
            script.append("headwater demo --help > /dev/null")
        elif line.startswith("make "):  # the others take minutes, this test among them: that they exist will do
            script.append(f"(cd {ROOT} && make --dry-run {line.split('#')[0].removeprefix('make ')} > /dev/null)")
        elif ENDLESS.match(command := line.split(" #")[0].strip()):
            started = SERVER.match(command)
            stopped = f"timeout 2 {command} || [ $? = {ENDED_BY_TIMEOUT} ]"
            script.append(stopped if started is None else _until_it_serves(command, int(started[1])))
        else:
            script.append(line)
    environment = {
        **os.environ,
        "HEADWATER_URL": f"http://{server.host}:{server.port}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BLOCK_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
    return count


def _until_it_serves(command: str, port: int) -> str:
    """Lines that start a server and stop it when it accepts connections: some cannot be stopped while they start."""
    return "\n".join(
        (
            f"{command} &",
            "server=$!",
            f"until (exec 3<> /dev/tcp/127.0.0.1/{port}) 2> /dev/null; do kill -0 $server; sleep 0.1; done",
            "kill $server",
            f"wait $server || [ $? = {ENDED_BY_SIGTERM} ]",
        )
    )


def _run_python(text: str, directory: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=BLOCK_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_in_blocks_that_are_run(page: Path) -> None:
    """What stands in a block without a language, or is indented like one, is not run: no command may hide there."""
    text = page.read_text()
    unnamed = [body for language, body in BLOCK.findall(text) if language not in ("bash", "python")]
    indented = re.findall(r"^    .*$", BLOCK.sub("", text), re.MULTILINE)
    for piece in (*unnamed, *indented):
        assert not COMMAND.search(piece), piece
