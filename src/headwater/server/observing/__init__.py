"""Monitoring: metrics, health checks, the access log, logs with request ids, traces, and the busiest streams."""

from headwater.server.observing.observer import Observer

__all__ = ["Observer"]
