"""A server with an embedded store, in a separate process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from headwater import limits
from headwater.errors import ClientError


@contextlib.contextmanager
def serving(data_dir: Path, port: int) -> Iterator[str]:
    """Run a server, and yield its URL."""
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    # In a separate session, so that Ctrl-C does not stop the server, which is needed to finish.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # noqa: S603
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        found = re.search(r"http://[^/\s]+", line)
        if found is None:
            raise ClientError("the server did not start; its message is above")
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(limits.DEMO_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ClientError(f"the server did not stop within {limits.DEMO_STOP_S:.0f} s, and was killed") from None
