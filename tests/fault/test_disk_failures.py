"""A server whose disk fails or is full, as its clients and its parent process see it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from headwater.limits import Limits
from headwater.server.serve import serve_store
from headwater.server.settings import Settings
from headwater.store.embedded.disk import RealDisk, RealFile
from tests.contract.stores import embedded
from tests.waiting import LIMIT_S, wait_for, wait_until

LIMITS = Limits(segment_bytes=20_000, fold_idle_s=3600, disk_reserve_bytes=20_000)
TEXT = {"content-type": "text/plain"}
# Larger than a segment: small appends could continue as long as the fold frees segments.
LARGE = b"x" * 50_000


class FaultyFile(RealFile):
    disk: FaultyDisk

    def write(self, position: int, data: bytes) -> None:
        grows = position + len(data) > Path(self.name).stat().st_size
        if self.disk.full and grows:
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        super().write(position, data)
        self.disk.bytes_written += len(data)

    def allocate(self, size: int) -> None:
        if self.disk.full:
            self.disk.checks += 1
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        super().allocate(size)

    def sync(self) -> None:
        if self.disk.failing:
            raise OSError(errno.EIO, "Input/output error", self.name)
        super().sync()


class FaultyDisk(RealDisk):
    full = False
    failing = False
    bytes_written = 0
    checks = 0  # for free space that there is not

    def open(self, name: str) -> RealFile:
        opened = super().open(name)
        file = FaultyFile(Path(opened.name), opened.descriptor)
        file.disk = self
        return file


def serve_and(client: Callable[[httpx.Client, FaultyDisk], None], directory: Path) -> int:
    """Run a server on a faulty disk until it stops or the client has finished. Returns its exit code."""
    disks: list[FaultyDisk] = []

    def faulty(path: Path) -> FaultyDisk:
        disks.append(FaultyDisk(path))
        return disks[-1]

    async def main() -> int:
        store = embedded(directory, threads=True, limits=LIMITS, make_disk=faulty)
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_store(store, Settings(port=0, limits=LIMITS), url.set_result))
        root = f"{await url}/v1/stream"

        def run() -> None:
            with httpx.Client(base_url=root, timeout=LIMIT_S) as http:
                client(http, disks[0])

        await asyncio.get_running_loop().run_in_executor(None, run)
        done, _ = await asyncio.wait((serving,), timeout=5)
        if not done:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return -1
        return serving.result()

    return asyncio.run(main())


def test_a_failed_sync_stops_the_server_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def client(http: httpx.Client, disk: FaultyDisk) -> None:
        assert http.put("/a", headers=TEXT).status_code == 201
        disk.failing = True
        answer = http.post("/a", headers=TEXT, content=b"lost?")
        assert answer.status_code == 500
        assert answer.json()["type"].endswith(":unknown-outcome")  # it may be stored or not
        assert answer.json()["retryable"] is False
        disk.failing = False  # a failed sync is final
        with contextlib.suppress(httpx.TransportError):  # it may have stopped already
            assert http.post("/a", headers=TEXT, content=b"more").status_code == 503

    with caplog.at_level(logging.CRITICAL):
        assert serve_and(client, tmp_path / "data") == 1
    assert "0000000000000001.journal" in caplog.text
    assert "Input/output error" in caplog.text


def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    def client(http: httpx.Client, disk: FaultyDisk) -> None:
        assert http.put("/a", headers=TEXT, content=b"kept;").status_code == 201
        disk.full = True
        answer = http.post("/a", headers=TEXT, content=LARGE)
        assert answer.status_code == 507
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["type"] == "urn:headwater:storage-full"
        assert http.put("/b", headers=TEXT).status_code == 507
        assert http.get("/a").content == b"kept;"  # reads work, and refused data is not stored
        disk.full = False
        wait_for(lambda: http.post("/a", headers=TEXT, content=b"again;").status_code, 204)
        assert http.get("/a").content == b"kept;again;"
        assert http.put("/b", headers=TEXT).status_code == 201

    assert serve_and(client, tmp_path / "data") == -1


def test_deletions_are_accepted_while_the_disk_is_full(tmp_path: Path) -> None:
    def client(http: httpx.Client, disk: FaultyDisk) -> None:
        for name in "abc":
            assert http.put(f"/{name}", headers=TEXT, content=b"kept;").status_code == 201
        disk.full = True
        assert http.post("/a", headers=TEXT, content=LARGE).status_code == 507
        assert http.put("/d", headers=TEXT).status_code == 507
        disk.full = False  # the space of the reserve
        assert http.delete("/b").status_code == 204
        disk.full = True
        assert http.get("/b").status_code == 404
        assert http.get("/c").content == b"kept;"

    assert serve_and(client, tmp_path / "data") == -1


def test_a_full_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def client(http: httpx.Client, disk: FaultyDisk) -> None:
        assert http.put("/a", headers=TEXT, content=b"kept;").status_code == 201
        disk.full = True
        assert http.post("/a", headers=TEXT, content=LARGE).status_code == 507
        written, checks = disk.bytes_written, disk.checks

        def is_checked_again() -> bool:
            assert http.post("/a", headers=TEXT, content=b"x" * 1500).status_code == 507
            return disk.checks >= checks + 3

        wait_until(is_checked_again)
        assert disk.bytes_written - written < 100_000  # it does not check for space by writing zeros

    with caplog.at_level(logging.WARNING):
        assert serve_and(client, tmp_path / "data") == -1
    assert caplog.text.count("the disk is full") == 1
