"""StreamDB, blocking."""

from headwater.state.sync.streamdb import StreamDB

__all__ = ["StreamDB"]
