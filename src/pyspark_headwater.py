"""Spark finds this module by its name and registers the format `durable-streams` in every session."""

from headwater.spark import DurableStreamsFormat as DefaultSource

__all__ = ["DefaultSource"]
