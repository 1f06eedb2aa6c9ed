"""The blocking shells, which `tools.twins` makes."""

from __future__ import annotations

from tools.twins import MODULES, twin_of


def test_nothing_of_asyncio_is_left() -> None:
    for module in MODULES:
        text = twin_of(module).read_text()
        for word in ("async ", "await ", "asyncio", "Async", "event loop", "coroutine"):
            assert word not in text, f"{module}: {word}"
