"""A refused preflight is in the log: the page and its author are told nothing, and no other request follows."""

from __future__ import annotations

import logging

import pytest

from headwater.server.access import Access
from headwater.server.http import Request


def preflight(access: Access, origin: str) -> None:
    headers = {"host": "127.0.0.1", "origin": origin, "access-control-request-method": "PUT"}
    access.check(Request("OPTIONS", "/v1/stream/s", "", headers, b"", peer="127.0.0.1"))


def test_a_refused_preflight_is_logged_once_for_each_origin(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(origins=["https://app.example"])
    with caplog.at_level(logging.WARNING, "headwater.server"):
        for origin in ("https://app.example", "https://evil.example", "https://evil.example", "https://other.example"):
            preflight(access, origin)
    assert [record.getMessage().split("'")[1] for record in caplog.records] == [
        "https://evil.example",
        "https://other.example",
    ]
    assert "--allow-origin" in caplog.text


def test_many_origins_do_not_fill_the_memory_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(origins=[])
    for number in range(5000):
        preflight(access, f"https://{number}.example")
    assert len(caplog.records) < 5000
