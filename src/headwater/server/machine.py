"""The memory that this process may use: that of the machine, of its control groups, and its limit of address space."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_UNLIMITED_BYTES = 1 << 60  # control groups of version 1 write a number of this size for no limit


class MemoryLimit(NamedTuple):
    size_bytes: int
    source: str  # what sets it, for messages


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The lowest limit on the memory of this process; None if it is unknown. `root` holds `proc` and `sys`."""
    return min((*_machine(), *_control_groups(root), *_address_space(root)), default=None)


def _machine() -> Iterator[MemoryLimit]:
    with contextlib.suppress(ValueError, OSError):
        pages = os.sysconf("SC_PHYS_PAGES")
        if pages > 0:
            yield MemoryLimit(pages * _PAGE_BYTES, "the machine")


def _control_groups(root: Path) -> Iterator[MemoryLimit]:
    """The limits of the control group of this process and of all groups above it, of both versions."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be that outside of it. Then only the top of the mount exists.
        for path in (PurePosixPath(group), *PurePosixPath(group).parents):
            text = _read(mount / str(path).lstrip("/") / name).strip()
            if text.isdecimal() and int(text) < _UNLIMITED_BYTES:
                yield MemoryLimit(int(text), f"the control group {path}")


def _address_space(root: Path) -> Iterator[MemoryLimit]:
    """The limit of address space, without what is mapped but not resident: code, and stacks of threads."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    sizes = re.match(r"(\d+) (\d+)", _read(root / "proc/self/statm"))
    if limit_bytes != resource.RLIM_INFINITY and sizes is not None:
        mapped_bytes = (int(sizes[1]) - int(sizes[2])) * _PAGE_BYTES
        yield MemoryLimit(max(0, limit_bytes - mapped_bytes), "the limit of address space")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
