"""A table in an object store: the S3 API of moto's server, with credentials in the environment only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from headwater.client import Client
from headwater.pipeline.lake import Lake
from tests.edges import memory_server
from tests.spark.test_commands import Command

SECRET = "the-secret-key-of-this-test"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    store = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    store.start()
    try:
        host, port = store.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_CONDITIONAL_PUT": "etag",
        }.items():
            monkeypatch.setenv(name, value)
        assert httpx.put(f"{endpoint}/lake").status_code == 200
        yield "s3://lake"
    finally:
        store.stop()


@pytest.mark.slow
def test_an_archive_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    table = f"{bucket}/raw"
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
