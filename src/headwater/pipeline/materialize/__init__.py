"""State streams to Delta tables of their current state, or of its history."""

from headwater.pipeline.materialize.job import materialize

__all__ = ["materialize"]
