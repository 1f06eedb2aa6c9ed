"""The command line with all of its commands, for tests and for the reference."""

from __future__ import annotations

from headwater.cli import make_app

app = make_app()
