"""What an operator sees: metrics, health, the access log, logs with request ids, traces, and the busiest streams."""

from headwater.server.observing.observer import Observer

__all__ = ["Observer"]
