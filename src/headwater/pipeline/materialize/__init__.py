"""Keeps Delta tables of the current state of state streams, or of its history."""

from headwater.pipeline.materialize.job import materialize

__all__ = ["materialize"]
