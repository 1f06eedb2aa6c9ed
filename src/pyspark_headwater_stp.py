"""Spark finds this module by its name and registers the format `stp` in every session."""

from headwater.spark import StpFormat as DefaultSource

__all__ = ["DefaultSource"]
