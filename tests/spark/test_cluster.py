"""A standalone master with two workers: no shared memory, and speculative tasks must not change the result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from bench.servers import ROOT, Server

from headwater.client import Client
from headwater.pipeline.lake import Lake
from headwater.pipeline.upkeep import TableUpkeep
from tests.edges import free_port
from tests.waiting import PROGRAM_LIMIT_S, wait_for

CLASSES = "org.apache.spark.deploy"
HOME = Path(pyspark.__file__).parent


@contextlib.contextmanager
def daemon(name: str, host: str, *arguments: str, log: Path) -> Iterator[None]:
    env = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable}
    command = [str(HOME / "bin" / "spark-class"), f"{CLASSES}.{name}", "--host", host, *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=log.parent
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[str]:
    port, log = free_port(), directory / "cluster.log"
    url = f"spark://127.0.0.1:{port}"
    worker = ("--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", str(directory / "work"), url)
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", "0", log=log))
        for host in ("127.0.0.1", "127.0.0.2"):  # Spark speculates on another host only
            stack.enter_context(daemon("worker.Worker", host, *worker, log=log))
        wait_for(lambda: len(re.findall(r"Registering worker", log.read_text())), 2, limit_s=240)  # Java starts
        yield url


def speculate(server: Server, directory: Path, *more: str) -> None:
    """Read 4,000 messages on a cluster, where Spark starts a task twice."""
    with Client(server.url) as client:
        source = client.stream("cluster/src")
        source.create()
        for start in range(0, 4000, 100):
            source.append_many([{"n": n} for n in range(start, start + 100)])
        with cluster(directory) as master:
            done = subprocess.run(
                [sys.executable, "-m", "tests.spark.cluster", server.url, master, str(directory / "checkpoint"), *more],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=PROGRAM_LIMIT_S,
            )
        source.delete()
    assert done.returncode == 0, done.stderr[-3000:]
    work = (directory / "work").rglob("stderr")
    attempts = re.findall(r"Running task (\d+)\.(\d+) in stage", "".join(path.read_text() for path in work))
    assert ("0", "1") in attempts, "nothing was started twice"


@pytest.mark.slow
def test_a_cluster_that_speculates(server: Server, tmp_path: Path) -> None:
    speculate(server, tmp_path)
    with Client(server.url) as client:
        copied = [message["n"] for message in client.stream("cluster/dst").read().all()]
    assert copied == list(range(4000))


@pytest.mark.slow
def test_an_archive_has_the_files_of_one_attempt_of_a_task(server: Server, tmp_path: Path) -> None:
    """Both attempts have written theirs. Those of the other one are not in the table, and upkeep deletes them."""
    directory = tmp_path / "lake"
    speculate(server, tmp_path, str(directory))
    lake = Lake(str(directory))
    rows = pa.table(lake.open().to_pyarrow_table()).sort_by("order")
    assert [json.loads(value)["n"] for value in rows["value"].to_pylist()] == list(range(4000))
    committed = {Path(name).name for name in lake.open().file_uris()}
    written = {path.name: path for path in directory.glob("date=*/*.parquet")}
    others = written.keys() - committed
    assert committed < written.keys()
    for name in others:
        os.utime(written[name], (0, 0))
    TableUpkeep(1, 1).after(0, [lake])
    left = {path.name for path in directory.glob("date=*/*.parquet")}
    assert not left & others
    assert lake.open().count() == 4000


def bare_python(directory: Path) -> Path:
    """A Python with the packages of this one except Headwater, as on a worker of a cluster."""
    venv.create(directory, with_pip=False)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # whose own .pth files are not read
    return directory / "bin" / "python"


def pipeline(directory: Path, *arguments: str) -> tuple[int, str]:
    """Run a command in a directory that the workers do not have as theirs."""
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "pipeline", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_jobs_on_a_cluster_whose_workers_get_headwater_from_the_command(server: Server, tmp_path: Path) -> None:
    """Tables are relative to the command's directory, and the error of a worker is told."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = wheel.rename(tmp_path / "headwater.zip")
    settings = {
        "spark.pyspark.python": str(bare_python(tmp_path / "python")),
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "1",
    }
    with Client(server.url) as client, cluster(tmp_path) as master:
        client.stream("cluster/raw").create(messages=[{"n": n} for n in range(100)])
        change = {"type": "thing", "key": "a", "value": 1, "headers": {"operation": "upsert"}}
        client.stream("cluster/state").create(messages=[change])
        flags = ["--url", server.url, "--streams", "cluster/raw", "--table", "lake/raw", "--once", "--master", master]
        flags += [f"--conf={key}={value}" for key, value in settings.items()]
        code, err = pipeline(tmp_path, "archive", *flags)
        missing = "a task of Spark failed: ModuleNotFoundError: No module named 'headwater'"
        assert (code, err.splitlines()[-1]) == (1, f"headwater: {missing}. It can be tried again.")
        assert not (tmp_path / "lake").exists()
        state = [flag.replace("raw", "state") for flag in flags]
        code, err = pipeline(tmp_path, "materialize", *state)
        assert (code, err.splitlines()[-1]) == (1, f"headwater: {missing}. It can be tried again.")
        assert not (tmp_path / "lake").exists()
        code, err = pipeline(tmp_path, "archive", *flags, "--conf=spark.submit.pyFiles=headwater.zip")
        assert code == 0, err
        code, err = pipeline(tmp_path, "materialize", *state, "--conf=spark.submit.pyFiles=headwater.zip")
        assert code == 0, err
    assert package.exists()
    assert Lake(str(tmp_path / "lake" / "raw")).open().to_pyarrow_table().num_rows == 100
    assert Lake(str(tmp_path / "lake" / "state")).open().to_pyarrow_table()["key"].to_pylist() == ["a"]
    assert not list((tmp_path / "work").rglob("*.parquet"))
