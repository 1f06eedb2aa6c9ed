"""Trims streams and tables of a server, as an operator does."""

from __future__ import annotations

import httpx

from headwater.client import Stream, Table


def keep_last(trimmed: Stream | Table, messages: int) -> None:
    """Remove all but so many of the last messages or rows, now, and keep everything from then on."""
    for value in (str(messages), ""):
        response = httpx.patch(trimmed.url, headers={"stream-retain-messages": value})
        assert response.status_code == 204, response.text
