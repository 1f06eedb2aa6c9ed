"""StreamDB for asyncio."""

from headwater.state.aio.streamdb import AsyncStreamDB

__all__ = ["AsyncStreamDB"]
