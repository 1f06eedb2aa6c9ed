"""Headwater: ordered, durable streams of state changes over HTTP."""

__version__ = "0.1.0"
