"""Notify: stores the NURLs that were advertised for tables, and POSTs to them when there are new rows."""

from __future__ import annotations

from headwater.server.notify.notifier import Notifier

__all__ = ["Notifier"]
