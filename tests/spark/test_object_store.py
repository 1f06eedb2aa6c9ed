"""A table in an object store: the S3 API of moto's server, with credentials in the environment only."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headwater.client import Client
from headwater.errors import CheckpointMismatchError, JobConflictError
from headwater.pipeline.belonging import TableGroup
from headwater.pipeline.lake import DataFile, Lake, TableBatch, telling_conflicts
from tests.edges import free_port, memory_server
from tests.spark.test_commands import Command
from tests.waiting import wait_until

SECRET = "the-secret-key-of-this-test"
SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}  # moto checks no more
ENVIRONMENT = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_CONDITIONAL_PUT": "etag",
}


@pytest.fixture
def store_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """moto's server in a process of its own: writes of delta-rs hold the lock of the interpreter."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _answers(url), "the store answers")
            for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
                monkeypatch.setenv(name, value)
            assert httpx.put(f"{url}/lake").status_code == 200
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code < 500
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_an_archive_in_a_bucket(store_url: str, tmp_path: Path) -> None:
    table = "s3://lake/raw"
    with memory_server() as server, Client(server.url) as client:
        client.stream("orders").create(messages=[{"n": n} for n in range(100)])
        flags = ["--url", server.url, "--streams", "orders", "--table", table, "--master", "local[2]", "--once"]
        with Command("archive", *flags, "--checkpoint", str(tmp_path / "checkpoint")) as done:
            code, out, err = done.end()
        assert code == 0, err
        assert out.startswith("archive: 100 rows")
        assert SECRET not in out + err
    rows = Lake(table).open().to_pyarrow_table()
    assert rows.num_rows == 100
    assert rows["value"][0].as_py() == b'{"n":0}'
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()


class Driver:
    """The driver of a job that commits a row for each batch, as archive does."""

    def __init__(self, job: str, lake: Lake, store_url: str) -> None:
        self._job = job
        self._lake = lake
        self._store_url = store_url
        self._group = TableGroup(lake, {}, f"/checkpoints/{job}")

    def begin(self, number: int) -> DeltaTable:
        table = self._lake.open()
        self._batch = TableBatch(self._job, number, made_of=number)
        self._batch.check(table)
        self._group.check_before(table, self._batch, None)
        data = pa.BufferOutputStream()
        pq.write_table(pa.table({"who": [self._job], "n": [number]}), data)
        name, body = f"{uuid.uuid4().hex}.parquet", data.getvalue().to_pybytes()
        url = f"{self._store_url}/{self._lake.uri.removeprefix('s3://')}/{name}"
        assert httpx.put(url, content=body).status_code == 200
        self._file = DataFile(name, len(body), {}, '{"numRecords": 1}')
        return table

    def end(self, table: DeltaTable) -> None:
        with telling_conflicts(self._lake, self._batch):
            self._lake.commit(table, [self._file], batch=self._batch)


def _table(name: str) -> Lake:
    lake = Lake(f"s3://lake/{name}")
    lake.create(pa.schema([("who", pa.string()), ("n", pa.int64())]))
    return lake


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "etag"], ids=["the default of delta-rs", "etag"])
def test_two_drivers_on_one_table(store_url: str, monkeypatch: pytest.MonkeyPatch, mode: str | None) -> None:
    """Both read the same version before either commits. Batches of two jobs are all there, in versions of their own."""
    monkeypatch.delenv("AWS_CONDITIONAL_PUT", raising=False)
    if mode is not None:
        monkeypatch.setenv("AWS_CONDITIONAL_PUT", mode)
    lake = _table("both")
    drivers = [Driver("a", lake, store_url), Driver("b", lake, store_url)]
    for number in range(5):
        versions = [driver.begin(number) for driver in drivers]
        for driver, table in zip(drivers, versions, strict=True):
            driver.end(table)
    rows = lake.open().to_pyarrow_table().to_pylist()
    assert sorted((row["who"], row["n"]) for row in rows) == [(who, n) for who in "ab" for n in range(5)]
    assert lake.open().version() == 10


@pytest.mark.slow
def test_of_two_drivers_of_one_job_the_slower_one_ends(store_url: str) -> None:
    lake = _table("one")
    first, second = Driver("a", lake, store_url), Driver("a", lake, store_url)
    table, same = first.begin(0), second.begin(0)
    first.end(table)
    with pytest.raises(JobConflictError, match="batch 0 of s3://lake/one was committed by another run"):
        second.end(same)
    assert lake.open().count() == 1


@pytest.mark.slow
def test_a_commit_that_another_driver_replaced_is_noticed(store_url: str) -> None:
    """A store without conditional requests keeps the later of two commits of one version, and both succeed. The second
    driver has a copy of the table here, and what it commits there takes the place of the first one's commit."""
    lake, copy = _table("unsafe"), _table("copy")
    first, second = Driver("a", lake, store_url), Driver("b", copy, store_url)
    first.end(first.begin(0))
    second.end(second.begin(0))
    entry = "_delta_log/00000000000000000001.json"
    replacing = httpx.get(f"{store_url}/lake/copy/{entry}", headers=SIGNED)
    assert '"appId":"b"' in replacing.text
    answer = httpx.put(f"{store_url}/lake/unsafe/{entry}", content=replacing.content, headers=SIGNED)
    assert answer.status_code == 200
    assert lake.open().transaction_version("a") is None
    with pytest.raises(CheckpointMismatchError, match="continues with batch 1, and it has none of them"):
        first.begin(1)


@pytest.mark.slow
def test_without_conditional_put_nothing_is_written(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(OSError, match="conditional put is disabled"):
        _table("none")
    assert b"<Key>" not in httpx.get(f"{store_url}/lake").content
