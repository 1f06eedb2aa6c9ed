from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from headwater.store.embedded.disk import File, RealDisk
from headwater.store.embedded.syncing import AdaptiveSyncer, KernelSyncer, Synced, Syncer, ThreadSyncer
from tests.waiting import LIMIT_S


def kernel_syncer() -> Syncer:
    try:
        return KernelSyncer()
    except OSError as error:
        pytest.skip(f"not offered here: {error}")


@pytest.mark.parametrize("make", [kernel_syncer, ThreadSyncer])
def test_a_sync_is_reported_on_the_loop(tmp_path: Path, make: type[ThreadSyncer]) -> None:
    async def main() -> list[OSError | None]:
        syncer = make()
        syncer.start()
        file = RealDisk(tmp_path).open("f")
        results: list[OSError | None] = []
        try:
            for number in range(20):
                done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
                file.write(number, b"x")
                syncer.sync(file, done.set_result)
                results.append(await asyncio.wait_for(done, LIMIT_S))
            file.close()
            failed: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
            syncer.sync(file, failed.set_result)
            results.append(await asyncio.wait_for(failed, LIMIT_S))
        finally:
            syncer.close()
        return results

    *fine, broken = asyncio.run(main())
    assert fine == [None] * 20
    assert isinstance(broken, OSError)


class Elsewhere:
    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None: ...

    def sync(self, file: File, synced: Synced) -> None:
        self.count += 1
        synced(None)

    def close(self) -> None: ...


def test_a_slow_disk_is_synced_elsewhere_and_a_fast_one_in_place(tmp_path: Path) -> None:
    elsewhere, now, takes = Elsewhere(), [0.0], [0.0001]

    def clock() -> float:
        now[0] += takes[0]
        return now[0]

    syncer = AdaptiveSyncer(elsewhere, clock)
    file = RealDisk(tmp_path).open("f")
    for _ in range(100):
        syncer.sync(file, lambda error: None)
    assert elsewhere.count == 0
    takes[0] = 0.005
    for _ in range(3000):
        syncer.sync(file, lambda error: None)
    assert elsewhere.count > 2980  # the interval between attempts grows
    takes[0] = 0.0001
    for _ in range(2000):
        syncer.sync(file, lambda error: None)
    before = elsewhere.count
    for _ in range(100):
        syncer.sync(file, lambda error: None)
    assert elsewhere.count == before
    file.close()


def test_a_full_queue_of_the_kernel_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[OSError | None]:
        syncer = kernel_syncer()
        syncer.start()

        def busy(*_: object) -> int:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

        file = RealDisk(tmp_path).open("f")
        results: list[OSError | None] = []
        with monkeypatch.context() as patch:
            patch.setattr(syncer, "_call", busy)
            syncer.sync(file, results.append)
        file.close()
        syncer.close()
        return results

    assert asyncio.run(main()) == [None]
