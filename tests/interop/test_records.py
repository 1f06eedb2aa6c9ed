"""Record times of our server, by the client in both shells and by the command."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from bench.servers import Server, headwater

from headwater import limits
from headwater.client import Client, RecordInfo, Stream
from headwater.errors import InvalidOffsetError, InvalidQueryError, StreamNotFoundError
from tests.waiting import PROGRAM_LIMIT_S

PAUSE_S = 0.05


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with headwater("--memory") as running:
        yield running


@pytest.fixture
def stream(client: Client) -> Stream:
    made = client.stream(f"records/{uuid.uuid4().hex}")
    made.create()
    return made


def append_three(stream: Stream) -> list[str]:
    """Three appends, the second of two messages, some time apart; the offsets after them."""
    ends = []
    for messages in ([1], [2, 3], [4]):
        ends.append(stream.append_many(messages).offset)
        time.sleep(PAUSE_S)  # the times of the records differ by at least this
    return ends


def test_a_record_is_an_append_with_its_time(stream: Stream) -> None:
    before = datetime.now(UTC)
    ends = append_three(stream)
    after = datetime.now(UTC)
    records = list(stream.records())
    assert all(isinstance(record, RecordInfo) for record in records)
    assert [record.next_offset for record in records] == ends
    assert [record.offset for record in records][1:] == ends[:-1]
    times = [record.time for record in records]
    assert all(later - earlier >= timedelta(seconds=PAUSE_S / 2) for earlier, later in itertools.pairwise(times))
    assert before - timedelta(milliseconds=1) <= times[0] <= times[-1] <= after
    assert all(moment.utcoffset() == timedelta() for moment in times)


def test_pages_make_the_whole(stream: Stream) -> None:
    ends = append_three(stream)
    whole = list(stream.records())
    assert list(stream.records(page=1)) == list(stream.records(page=2)) == whole
    assert list(stream.records(offset=ends[0])) == whole[1:]
    assert list(stream.records(until=ends[1], page=1)) == whole[:2]
    assert list(stream.records(offset=ends[0], until=ends[1])) == whole[1:2]
    assert list(stream.records(offset="now")) == list(stream.records(offset=ends[-1])) == []


def test_times_as_columns(stream: Stream) -> None:
    ends = append_three(stream)
    whole = list(stream.records())
    for page, count in ((1, 3), (2, 2), (10, 1)):
        pages = list(stream.record_times(page=page))
        assert len(pages) == count
        assert [moment for times in pages for moment in times.times_ms] == [
            round(record.time.timestamp() * 1000) for record in whole
        ]
    [only] = stream.record_times(offset=ends[0], until=ends[1])
    assert (only.offset, only.next_offset, only.ends) == (ends[0], ends[1], [int(ends[1][17:]) - int(ends[0][17:])])
    [nothing] = stream.record_times(offset=ends[-1])
    assert (nothing.ends, nothing.times_ms, nothing.up_to_date) == ([], [], True)


def test_arrow_from_an_offset_of_another_stream(client: Client, stream: Stream) -> None:
    append_three(stream)
    other = client.stream(f"{stream.path}-other")
    other.create(messages=[1])
    for offset in (other.head().tail_offset, "9_9", "junk"):
        with pytest.raises(InvalidOffsetError):
            stream.arrow(offset=offset)
    assert stream.arrow(offset="now").num_rows == 0


def test_what_is_read_from_the_offset_at_a_time_was_appended_since(stream: Stream) -> None:
    begin = stream.head().tail_offset
    ends = append_three(stream)
    first, second, third = stream.records()
    assert stream.read(offset=stream.offset_at(first.time - timedelta(days=1))).all() == [1, 2, 3, 4]
    assert stream.offset_at(first.time) == first.offset == begin
    assert stream.offset_at(first.time + timedelta(milliseconds=1)) == second.offset
    assert stream.offset_at(second.time) == second.offset
    assert stream.read(offset=stream.offset_at(second.time)).all() == [2, 3, 4]
    assert stream.read(offset=stream.offset_at(third.time)).all() == [4]
    assert stream.offset_at(third.time + timedelta(seconds=1)) == ends[-1]
    assert stream.offset_at(datetime.now(UTC) + timedelta(days=1)) == ends[-1]


def test_an_empty_stream_has_no_records(stream: Stream) -> None:
    assert list(stream.records()) == []
    assert stream.read(offset=stream.offset_at(datetime.now(UTC) - timedelta(hours=1))).all() == []


def test_a_fork_has_the_times_of_its_source(stream: Stream) -> None:
    append_three(stream)
    whole = list(stream.records())
    forked = stream.fork(f"records/{uuid.uuid4().hex}")
    assert [record.time for record in forked.records()] == [record.time for record in whole]
    forked.append(5)
    assert forked.read(offset=forked.offset_at(whole[-1].time)).all() == [4, 5]


def test_errors_are_the_usual_ones(client: Client, stream: Stream) -> None:
    with pytest.raises(StreamNotFoundError):
        list(client.stream("records/missing").records())
    with pytest.raises(StreamNotFoundError):
        client.stream("records/missing").offset_at(datetime.now(UTC))
    with pytest.raises(InvalidOffsetError):
        list(stream.records(offset="nonsense"))
    for page in (0, limits.RECORDS_PAGE_MAX + 1):
        with pytest.raises(InvalidQueryError):
            list(stream.records(page=page))


def test_times_on_the_wire(server: Server, stream: Stream) -> None:
    ends = append_three(stream)
    url = f"http://{server.host}:{server.port}/v1/stream/__ds/records"
    path = stream.url.partition("/v1/stream/")[2]
    page = httpx.get(url, params={"path": path, "limit": "2"}).json()
    assert (page["next_offset"], page["up_to_date"], len(page["records"])) == (ends[1], False, 2)
    assert page["records"][0].keys() == {"offset", "next_offset", "time"}
    assert datetime.fromisoformat(page["records"][0]["time"]).tzinfo is UTC
    assert httpx.get(url, params={"path": path}).json()["up_to_date"] is True
    for query in ({"at": "yesterday"}, {"at": "2026-11-15T19:30:00"}, {"limit": "many"}, {"compact": "yes"}):
        refused = httpx.get(url, params={"path": path, **query})
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/problem+json"


def _read(server: Server, *arguments: str) -> bytes:
    ran = subprocess.run(
        [sys.executable, "-m", "headwater", "read", *arguments],
        capture_output=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
        env={**os.environ, "HEADWATER_URL": f"http://{server.host}:{server.port}"},
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def test_the_command_reads_since(server: Server) -> None:
    with Client(f"http://{server.host}:{server.port}") as client:
        path = f"records/{uuid.uuid4().hex}"
        stream = client.stream(path)
        stream.create()
        append_three(stream)
        _, second, _ = stream.records()
    assert _read(server, path, "--since", "1h") == b"1\n2\n3\n4\n"
    assert _read(server, path, "--since", second.time.isoformat()) == b"2\n3\n4\n"
    assert _read(server, path, "--since", "0s") == b""
