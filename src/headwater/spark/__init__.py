"""Streams and state in Spark: sources and sinks, exactly once both ways."""

from headwater.spark.formats import DurableStreams, StreamState
from headwater.spark.session import register, session

__all__ = ["DurableStreams", "StreamState", "register", "session"]
