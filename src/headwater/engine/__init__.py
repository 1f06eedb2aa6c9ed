"""The engine: many writers and readers of streams; readers only see durable data."""

from headwater.engine.engine import Engine

__all__ = ["Engine"]
