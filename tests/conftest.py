"""Settings of every suite."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("headwater", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("headwater")
