"""Parameters of which `make test` runs the first ones and `make test-release` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick(count: int, values: Iterable[object]) -> list[Any]:
    """Values for `parametrize`: all but the first `count` are slow."""
    return [
        value if number < count else pytest.param(value, marks=pytest.mark.slow) for number, value in enumerate(values)
    ]
