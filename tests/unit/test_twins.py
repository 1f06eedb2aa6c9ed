"""The blocking shells are what is made from the asyncio ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.twins import MODULES, blocking, twin_of


@pytest.mark.parametrize("module", MODULES)
def test_a_blocking_module_is_what_is_made_from_its_twin(module: Path) -> None:
    assert twin_of(module).read_text() == blocking(module)


def test_nothing_of_asyncio_is_left() -> None:
    for module in MODULES:
        text = twin_of(module).read_text()
        for word in ("async ", "await ", "asyncio", "Async", "event loop", "coroutine"):
            assert word not in text, f"{module}: {word}"
