"""Spark sources and sinks for streams, state events and tables, with exactly-once reads and writes."""

from headwater.spark.folding import current_state
from headwater.spark.formats import DurableStreamsFormat, StpFormat, StreamStateFormat
from headwater.spark.progress import QueryProgress, StreamLag, lag
from headwater.spark.session import register, session

__all__ = [
    "DurableStreamsFormat",
    "QueryProgress",
    "StpFormat",
    "StreamLag",
    "StreamStateFormat",
    "current_state",
    "lag",
    "register",
    "session",
]
