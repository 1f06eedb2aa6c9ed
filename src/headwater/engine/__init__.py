"""The engine: streams that are written by many and seen only once durable."""

from headwater.engine.engine import Engine

__all__ = ["Engine"]
