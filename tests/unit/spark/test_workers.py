"""The process that starts Spark's Python workers, without Java."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.spark.home import workers_module
from tests.waiting import wait_until


def ends(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def standard_error(module: str, directory: Path) -> str:
    """What the process and a worker write whose connection is closed while it is idle, as when a session stops."""
    settings = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(directory),
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module, "pyspark.worker"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **settings}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        length = int.from_bytes(process.stdout.read(4), "big")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(process.stdout.read(length).decode())
            worker = int.from_bytes(connection.recv(4), "big")
        wait_until(lambda: ends(worker))
        process.stdin.close()
        return process.stderr.read().decode()


@pytest.mark.parametrize(("module", "is_quiet"), [("headwater.spark_workers", True), ("pyspark.daemon", False)])
def test_an_idle_worker_ends_without_a_traceback(module: str, is_quiet: bool, tmp_path: Path) -> None:
    """PySpark's own module shows that the test would notice one."""
    assert ("BrokenPipeError" not in standard_error(module, tmp_path)) is is_quiet


def test_workers_on_other_machines_and_of_other_pythons_are_pysparks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert workers_module("local[2]", {}) == {"spark.python.daemon.module": "headwater.spark_workers"}
    assert workers_module("spark://h:1", {}) == {}
    assert workers_module("local[2]", {"spark.pyspark.python": "python3"}) == {}
