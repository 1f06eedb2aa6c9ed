"""Backups in a bucket: the S3 API of moto's server, with credentials in the environment only."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from headwater.store.embedded.backup.failures import BackupError, MissingError, TargetError
from headwater.store.embedded.backup.targets import open_target
from tests.command_line import invoke
from tests.edges import free_port
from tests.unit.store.embedded.test_directory import append, content, create, live

SECRET = "the-secret-key-of-this-test"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    store = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    store.start()
    try:
        host, port = store.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        store.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    name = re.sub("[^a-z0-9]+", "-", request.node.name)[:60].strip("-")
    assert httpx.put(f"{endpoint}/{name}").status_code == 200
    return f"s3://{name}"


def test_a_bucket_as_a_target(bucket: str) -> None:
    target = open_target(f"{bucket}/some/prefix/")
    assert target.is_empty()
    names = [f"folder/{number:05d}" for number in range(1_005)]  # more than a page of a list, or one deletion, has
    for name in names[:3]:
        target.put(name, name.encode())
    assert target.sizes("folder/") == dict.fromkeys(names[:3], 12)
    assert not target.is_empty()
    assert open_target(f"{bucket}/some").sizes("prefix/folder/") == {f"prefix/{name}": 12 for name in names[:3]}
    assert target.get(names[1]) == names[1].encode()
    target.put(names[1], b"other")
    assert target.get(names[1]) == b"other"
    target.remove(names)
    assert target.sizes("folder/") == {}
    with pytest.raises(MissingError, match="lacks folder/00001"):
        target.get(names[1])


def test_a_backup_and_a_restore_by_command(bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    directory, url = tmp_path / "data", f"{bucket}/headwater"

    def run(*arguments: str) -> str:
        done = invoke(list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert SECRET not in done.output
        return done.output

    async def write(engine: object) -> None:
        await create(engine, "a")  # type: ignore[arg-type]
        await append(engine, "a", b"one;")  # type: ignore[arg-type]

    live(directory, write)
    assert "with a copy of the index" in run("backup", str(directory), url)
    assert "with a copy" not in run("backup", str(directory), url, "--keep", "30d")
    assert "behind" in run("backup", "status", url)
    run("restore", url, "--to", str(tmp_path / "copy"))

    async def look(engine: object) -> None:
        assert await content(engine, "a") == b"one;"  # type: ignore[arg-type]

    live(tmp_path / "copy", look)
    assert not [record for record in caplog.records if SECRET in record.getMessage()]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_errors_of_a_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"s3://no-such-bucket.*NoSuchBucket"):
        open_target("s3://no-such-bucket").put("a", b"")
    for wrong in ("s3://", "s3://key:secret@bucket/x", "s3://bucket/x?versionId=1"):
        with pytest.raises(BackupError, match=r"s3://bucket/prefix. Set credentials in the environment") as error:
            open_target(wrong)
        assert "secret" not in str(error.value)
    with pytest.raises(BackupError, match="gs: is not supported"):
        open_target("gs://bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetError, match="Could not connect"):
        open_target(bucket).get("a")
