"""The access log: lines that cannot be forged, without secrets, from a thread that delays nobody."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import OptionError
from headwater.server.http import Request, Response
from headwater.server.observing.access_log import (
    AccessEntry,
    AccessLog,
    as_combined_line,
    as_json_line,
    open_access_log,
)
from tests.waiting import wait_until


def request(path: str = "/v1/stream/a", query: str = "", **headers: str) -> Request:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", path, query, names, b"", peer="127.0.0.1", id="id-1")


def entry(**changes: object) -> AccessEntry:
    plain = AccessEntry(1.5, "127.0.0.1", "", "GET", "/v1/stream/a", "", "1.1", 200, 3, 0.25, "curl", "id-1")
    return plain._replace(**changes)  # type: ignore[arg-type]


def test_a_line_as_other_servers_write_it() -> None:
    assert as_combined_line(entry(query="offset=-1&live=sse", identity="alice")) == (
        "127.0.0.1 - alice [1970-01-01T00:00:01.500Z] "
        '"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1" 200 3 0.250000 "curl" id-1'
    )


def test_a_line_as_json() -> None:
    assert json.loads(as_json_line(entry(sent_bytes=None))) == {
        "time": "1970-01-01T00:00:01.500Z",
        "peer": "127.0.0.1",
        "identity": "",
        "method": "GET",
        "target": "/v1/stream/a",
        "version": "1.1",
        "status": 200,
        "sent_bytes": None,
        "took_s": 0.25,
        "user_agent": "curl",
        "request_id": "id-1",
    }


@pytest.mark.parametrize(
    "query",
    [
        "sig=SECRET",
        "offset=-1&sig=SECRET&exp=SECRET",
        "SECRET",
        "SECRET=1",
        "offset=1;sig=SECRET",
        "prefix=user:x@SECRET",
        "%6fffset=SECRET",
        "token=SECRET&token=SECRET",
    ],
)
def test_what_may_be_a_secret_in_a_query_is_hidden(query: str) -> None:
    for render in (as_combined_line, as_json_line):
        assert "SECRET" not in render(entry(query=query))
        assert "[hidden]" in render(entry(query=query))


@given(st.text(), st.text(), st.text(), st.text())
def test_a_line_cannot_be_forged(path: str, query: str, agent: str, identity: str) -> None:
    for render in (as_combined_line, as_json_line):
        line = render(entry(path=path, query=query, agent=agent, identity=identity))
        assert line.isascii()
        assert line.isprintable()
    assert json.loads(as_json_line(entry(agent=agent)))["user_agent"] == agent


def test_no_header_but_the_agent_is_written(tmp_path: Path) -> None:
    target = tmp_path / "access.log"
    log = open_access_log(str(target), as_json=True)
    secrets = {"authorization": "Bearer SECRET", "cookie": "SECRET", "referer": "http://x/?SECRET"}
    log.note(request(user_agent="curl", **secrets), Response(200), 0.1)
    log.close()
    assert "SECRET" not in target.read_text()
    assert json.loads(target.read_text())["user_agent"] == "curl"
    assert target.stat().st_mode & 0o007 == 0


def test_a_renamed_file_is_left_and_another_one_begun(tmp_path: Path) -> None:
    target = tmp_path / "access.log"
    log = open_access_log(str(target), as_json=False)
    log.note(request("/before"), Response(200), 0.1)
    wait_until(target.read_text)
    target.rename(tmp_path / "old.log")
    log.reopen()
    wait_until(target.exists)
    log.note(request("/after"), Response(200), 0.1)
    log.close()
    assert "/before" in (tmp_path / "old.log").read_text()
    assert "/after" in target.read_text()
    assert "/before" not in target.read_text()


def test_a_target_that_takes_nothing_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACCESS_LOG_CLOSE_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = open_access_log(str(pipe), as_json=True)
        for _ in range(limits.ACCESS_LOG_WAITING_MAX * 2):
            log.note(request("/" + "x" * 500), Response(200), 0.1)
        assert log.dropped > 0
        log.close()  # it ends, although the pipe stays full
    finally:
        os.close(reader)  # which ends the thread


def _has_dropped(log: AccessLog, count: int) -> bool:
    return log.dropped == count


def test_a_disk_that_is_full_is_told_once_and_the_log_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    log = open_access_log("/dev/full", as_json=True)
    for count in range(1, 4):
        log.note(request(), Response(200), 0.1)
        wait_until(partial(_has_dropped, log, count))
    log.close()
    assert caplog.text.count("/dev/full cannot be written: No space left on device") == 1


def test_long_values_take_bounded_room() -> None:
    kept: list[AccessEntry] = []

    def render(entry: AccessEntry) -> str:
        kept.append(entry)
        return ""

    log = AccessLog("/dev/null", render)
    log.start()
    log.note(request("/" + "p" * 9999, "q" * 9999, user_agent="a" * 9999), Response(200), 0.1)
    log.close()
    assert sum(len(str(field)) for field in kept[0]) < 3000


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file or directory"):
        open_access_log(str(tmp_path / "missing" / "access.log"), as_json=False)
    os.mkfifo(tmp_path / "pipe")  # that nobody reads
    with pytest.raises(OptionError, match="No such device or address"):
        open_access_log(str(tmp_path / "pipe"), as_json=False)
