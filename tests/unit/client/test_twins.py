"""The blocking shell is what is made from the asyncio one."""

from __future__ import annotations

import pytest
from tools.twins import CLIENT, MODULES, blocking


@pytest.mark.parametrize("module", MODULES)
def test_a_blocking_module_is_what_is_made_from_its_twin(module: str) -> None:
    assert (CLIENT / "sync" / f"{module}.py").read_text() == blocking(
        module, (CLIENT / "aio" / f"{module}.py").read_text()
    )


def test_nothing_of_asyncio_is_left() -> None:
    for module in MODULES:
        text = (CLIENT / "sync" / f"{module}.py").read_text()
        for word in ("async ", "await ", "asyncio", "Async", "event loop", "coroutine"):
            assert word not in text, f"{module}: {word}"
