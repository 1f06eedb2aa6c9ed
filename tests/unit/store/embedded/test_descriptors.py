"""A lack of file descriptors is temporary: requests are refused with the reason, and background work is retried."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import Any, NoReturn

import pytest

from headwater.store.embedded.fold_worker import FoldWorker
from headwater.store.embedded.folder import FoldUnavailableError, SubprocessFolder
from tests.fault.sim import SimIndex
from tests.fault.sim_disk import SimDisk


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_fold_without_descriptors_can_be_retried(number: int) -> None:
    disk = SimDisk(random.Random(0))
    disk.no_descriptors = number
    answer = FoldWorker(disk, SimIndex().connect()).handle("fold 1")
    assert answer.full
    assert os.strerror(number) in str(answer.error)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN])
def test_a_fold_worker_that_cannot_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    async def fold() -> None:
        await SubprocessFolder(tmp_path).fold(1)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    with pytest.raises(FoldUnavailableError, match=os.strerror(number)):
        asyncio.run(fold())
