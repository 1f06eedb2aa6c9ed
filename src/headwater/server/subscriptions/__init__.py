"""Subscriptions: durable cursors over streams that wake workers, by webhooks or wake events."""

from __future__ import annotations

from headwater.server.subscriptions.subscriptions import Subscriptions

__all__ = ["Subscriptions"]
