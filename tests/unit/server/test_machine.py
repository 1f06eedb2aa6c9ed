"""The memory that a process may use, and the memory mark that follows from it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.limits import MEMORY_BYTES_MIN, Limits
from headwater.server.machine import MemoryLimit, memory_limit
from headwater.server.memory import choose_memory, fit_memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 64 * GIB // 4096}.__getitem__)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    write(tmp_path / "proc/self/statm", "30000 10000 5 1 0 0 0\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_memory_of_the_machine(root: Path) -> None:
    assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine")


def test_control_groups_of_version_2(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/system.slice/headwater.service\n")
    write(root / "sys/fs/cgroup/system.slice/headwater.service/memory.max", "max\n")
    assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine")
    write(root / "sys/fs/cgroup/system.slice/memory.max", f"{2 * GIB}\n")
    assert memory_limit(root) == MemoryLimit(2 * GIB, "the control group /system.slice")
    write(root / "sys/fs/cgroup/system.slice/headwater.service/memory.max", f"{GIB}\n")
    assert memory_limit(root) == MemoryLimit(GIB, "the control group /system.slice/headwater.service")


def test_control_groups_of_version_1(root: Path) -> None:
    write(root / "proc/self/cgroup", "12:cpu,cpuacct:/\n7:memory:/docker/0123\n0::/\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit(root) == MemoryLimit(64 * GIB, "the machine")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")  # as it is seen in a container
    assert memory_limit(root) == MemoryLimit(GIB, "the control group /")


def test_the_limit_of_address_space(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, GIB))
    assert memory_limit(root) == MemoryLimit(GIB - 20_000 * 4096, "the limit of address space")


def test_the_mark_is_a_share_of_it_unless_it_is_set() -> None:
    limit = MemoryLimit(4 * GIB, "the machine")
    assert choose_memory(Limits(), limit).memory_bytes_max == 3 * GIB
    assert choose_memory(Limits(memory_bytes_max=GIB), limit).memory_bytes_max == GIB
    assert choose_memory(Limits(), None).memory_bytes_max == 0


def test_a_machine_that_is_too_small_is_named(caplog: pytest.LogCaptureFixture) -> None:
    chosen = choose_memory(Limits(), MemoryLimit(MEMORY_BYTES_MIN // 2, "the control group /small"))
    assert chosen.memory_bytes_max == MEMORY_BYTES_MIN
    fit_memory(chosen)
    assert "the control group /small allows" in caplog.text


def test_a_body_that_never_fits_is_too_large() -> None:
    small = fit_memory(Limits(memory_bytes_max=MEMORY_BYTES_MIN))
    assert small.body_bytes_max < small.request_bytes_in_flight_max < Limits().body_bytes_max
    assert fit_memory(Limits(memory_bytes_max=GIB)).body_bytes_max == Limits().body_bytes_max


_WITHOUT_MEMORY = """
import resource
from headwater.log.events import Appended
from headwater.store.embedded.journal import encode_records
record = (Appended(1, 0, 0, b"x" * (16 << 20)),)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, ((pages * 4096 + (20 << 20)),) * 2)
try:
    encode_records([record] * 3)
except MemoryError:
    print("no memory")
"""


@pytest.mark.slow
def test_a_batch_without_memory_is_an_error_and_not_a_crash() -> None:
    ended = subprocess.run([sys.executable, "-c", _WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "no memory\n"), ended.stderr
