"""The commands that the page of an example names, as processes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def commands(example: str) -> list[str]:
    """The lines of all bash blocks of an example's page."""
    blocks = re.findall(
        r"^```bash\n(.*?)^```", (EXAMPLES / example / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def environment(**variables: str) -> dict[str, str]:
    """With the commands of this Python first on the path."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        **variables,
    }


@contextlib.contextmanager
def started(
    command: str, *options: str, says_ready: bool = True, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command from the root of the repository until the block ends; with its first line of output."""
    process = subprocess.Popen(
        [*shlex.split(command), *options],
        cwd=ROOT,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline() if says_ready else ""
        assert line or not says_ready, f"{command} ended with {process.wait()}"
        yield process, line
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
