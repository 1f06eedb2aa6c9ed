"""Commands of this directory run in the process of the tests: what they set up is taken down again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def the_log_as_it_was() -> Iterator[None]:
    """`headwater serve` has the log written to standard error, also for whoever comes after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
