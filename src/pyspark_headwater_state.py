"""Spark finds this module by its name and registers the format `stream-state` in every session."""

from headwater.spark import StreamStateFormat as DefaultSource

__all__ = ["DefaultSource"]
