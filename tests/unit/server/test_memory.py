from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from headwater.errors import OverloadedError
from headwater.limits import MEMORY_RELIEF_S, Limits
from headwater.server.admission import Admission
from headwater.server.http import Request
from headwater.server.memory import MemoryMark, fit_memory

MIB = 1024 * 1024


class Process:
    """A process whose memory is set by hand; relief frees `freed` of it."""

    def __init__(self, used: int = 0, freed: int = 0) -> None:
        self.used, self.freed, self.relieved = used, freed, 0
        self.mark = MemoryMark(1_000, self.relieve, lambda: self.used)

    async def relieve(self) -> None:
        self.relieved += 1
        self.used -= self.freed

    def look(self, now_s: float, used: int) -> bool:
        self.used = used
        asyncio.run(self.mark.look(now_s))
        return self.mark.short


def test_writes_are_refused_until_there_is_clearly_memory_again() -> None:
    process = Process()
    assert [process.look(0, used) for used in (0, 799, 899, 900, 899, 800, 799, 850)] == [
        False,
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_what_can_be_freed_is_freed_before_anything_is_refused() -> None:
    process = Process(freed=300)
    assert not process.look(0.0, 850)
    assert process.relieved == 1
    assert not process.look(1.0, 1_050)  # 750 once relieved
    assert not process.mark.exhausted


def test_relief_is_not_tried_at_every_look() -> None:
    process = Process()
    for now_s in (0.0, MEMORY_RELIEF_S / 2, MEMORY_RELIEF_S):
        process.look(now_s, 950)
    assert process.relieved == 2


def test_the_mark_itself_is_for_new_connections() -> None:
    process = Process()
    process.look(0.0, 999)
    assert not process.mark.exhausted
    process.look(0.0, 1_000)
    assert process.mark.exhausted


@pytest.mark.parametrize(("method", "refused"), [("POST", True), ("PUT", True), ("GET", False), ("DELETE", False)])
def test_reads_and_deletions_go_on(method: str, refused: bool) -> None:
    process = Process()
    process.look(0.0, 950)
    admission = Admission(Limits(), process.mark)
    request = Request(method, "/v1/stream/a", "", {}, b"")
    if not refused:
        admission.meet(request)
        return
    with pytest.raises(OverloadedError, match="950 of 1000 bytes") as caught:
        admission.meet(request)
    assert caught.value.retry_after_s == 1


def test_budgets_fit_the_mark() -> None:
    assert fit_memory(Limits()) == Limits()
    fitted = fit_memory(Limits(memory_bytes_max=256 * MIB, active_bytes_max=MIB))
    assert fitted.active_bytes_max == MIB  # what is small enough stays
    held = (
        fitted.request_bytes_in_flight_max
        + fitted.response_bytes_in_flight_max
        + fitted.large_read_bytes_max
        + fitted.commit_backlog_bytes
        + fitted.segment_bytes * (fitted.unfolded_segments_max + 2)
    )
    assert held < 192 * MIB
    with pytest.raises(ValueError, match="at least"):
        fit_memory(Limits(memory_bytes_max=MIB))


def test_resident_memory_is_that_of_this_process() -> None:
    program = """
from headwater.server.memory import resident_bytes
before = resident_bytes()
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
print(resident_bytes() - before)
"""  # in a fresh process, because the system may take unused pages from that of the tests meanwhile
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert 60 * MIB < int(ran.stdout) < 80 * MIB
