"""Spark's Python workers, without Java."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

# A worker for tasks of one byte. At the end of its connection it writes an error, as PySpark's own does.
WORKER = """
import sys

def main(infile, outfile):
    if {is_quiet}:
        import headwater.spark
    if not infile.read(1):
        outfile.write(b"the end")
        sys.exit(-1)
    outfile.write(b"+")
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in whose files sockets can be: their paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="w", dir="/tmp") as directory:
        yield Path(directory)


def has_ended(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("is_quiet", [True, False])
def test_an_idle_worker_ends_without_a_traceback(is_quiet: bool, short_path: Path) -> None:
    """PySpark alone shows that the test would notice one."""
    (short_path / "pyspark_worker_of_test.py").write_text(WORKER.format(is_quiet=is_quiet))
    settings = {
        "PYTHONPATH": os.pathsep.join([str(short_path), *sys.path]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short_path),
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_worker_of_test"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **settings}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        length = int.from_bytes(process.stdout.read(4), "big")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(process.stdout.read(length).decode())
            worker = int.from_bytes(connection.recv(4), "big")
            for _ in range(2):
                connection.sendall(b"1")
                assert connection.recv(1) == b"+"
        wait_until(lambda: has_ended(worker))
        process.stdin.close()
        errors = process.stderr.read().decode()
    assert ("BrokenPipeError" not in errors) is is_quiet
