"""Streams and state in Spark: sources and sinks, exactly once both ways."""

from headwater.spark.formats import DurableStreamsFormat, StreamStateFormat
from headwater.spark.session import register, session

__all__ = ["DurableStreamsFormat", "StreamStateFormat", "register", "session"]
