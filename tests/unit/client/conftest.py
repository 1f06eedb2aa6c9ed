"""Tests of the client run over both shells."""

from __future__ import annotations

import pytest

from tests.shells import SHELLS


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)
