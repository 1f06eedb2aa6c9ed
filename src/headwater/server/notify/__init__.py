"""Notify: the NURLs that others advertised for tables, kept durably, and the POSTs that tell them of new rows."""

from __future__ import annotations

from headwater.server.notify.notifier import Notifier

__all__ = ["Notifier"]
