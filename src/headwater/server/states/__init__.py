"""States: the entities of state streams by URL, now or at an offset or a time."""

from headwater.server.states.states import States

__all__ = ["States"]
