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


class ServerNotStartedError(Exception):
    """The server ended before it listened. It has printed the reason on standard error."""


@contextlib.contextmanager
def serving(data_dir: Path, port: int) -> Iterator[str]:
    """Run a server, and yield its URL."""
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(port), "--data-dir", str(data_dir)]
    # In a separate session, so that Ctrl-C does not stop the server, which is needed to finish.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://[^/\s]+", line)
            if found is None:
                raise ServerNotStartedError("the server did not start; it has printed the reason")
            yield found[0]
        finally:
            process.terminate()
            try:
                process.wait(limits.DEMO_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ClientError(
                    f"the server did not stop within {limits.DEMO_STOP_S:.0f} s, and was killed"
                ) from None
