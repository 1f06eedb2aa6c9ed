"""The engine: composes protocol and store into streams that are written by many and seen only once durable."""

from headwater.engine.engine import Engine
from headwater.engine.streams import Stream

__all__ = ["Engine", "Stream"]
