"""Headwater: changing state, in step across machines and organisations, over plain HTTP."""

__version__ = "0.1.0"
