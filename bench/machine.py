"""A description of the machine, which is stored with every result."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path


def describe_machine() -> dict[str, str]:
    return {
        "cpu": f"{os.cpu_count()} cores, {_cpu_name()}",
        "memory_gib": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "node": _version("node"),
        "fsync": "every acknowledged append is synced (fdatasync) first, except where a row says in memory",
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(command: str) -> str:
    try:
        return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "not installed"


def peak_memory_bytes() -> int:
    """The peak resident memory of this process, without that of its parent process."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if match is None:
        raise RuntimeError("no VmHWM in /proc: is this Linux?")
    return int(match[1]) * 1024
