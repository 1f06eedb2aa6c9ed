"""Compaction over every edge: what readers, forks and lists make of a stream whose front is replaced by a snapshot."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from headwater.client import Client
from headwater.protocol.tables.following import TableFollowing
from tests.edges import EDGES_OF_SHARED, edge, root_of
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
STREAM = "/v1/stream"
NEXT, FIRST = "stream-next-offset", "stream-first-offset"
GAPLESS = "stp-gapless"
NOW, ACTIVE = {"timeout": "0"}, {"view": "active"}
KEYS = 150
PADDING = "x" * 1_000  # the snapshot has several records


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param, read_chunk_bytes=100_000, sse_chunk_bytes=100_000) as server:
        root = root_of(request.param, server).removesuffix(STREAM)
        with httpx.Client(base_url=root, timeout=60) as client:
            yield client


class Filled:
    """A state stream, and what a reader from each of its offsets folds."""

    def __init__(self, client: httpx.Client, changes: int = 4 * KEYS) -> None:
        self.client = client
        self.name = f"c/{uuid.uuid4().hex}"
        self.path = f"{STREAM}/{self.name}"
        created = client.put(self.path, headers=JSON)
        assert created.status_code == 201
        self.offsets = [created.headers[NEXT]]
        self.messages: list[Any] = []
        for first in range(0, changes, 30):
            self.append([change(n) for n in range(first, first + 30)])

    def append(self, messages: list[Any]) -> None:
        self.messages += messages
        self.offsets.append(
            self.client.post(self.path, headers=JSON, content=json.dumps(messages).encode()).headers[NEXT]
        )

    def compact(self) -> dict[str, Any]:
        response = self.client.post(f"{STREAM}/__ds/compact", params={"path": self.name})
        assert response.status_code == 200, response.text
        return dict(response.json())


@pytest.fixture
def filled(client: httpx.Client) -> Filled:
    return Filled(client)


def change(number: int) -> dict[str, Any]:
    headers = {"operation": "delete" if number % 70 == 69 else "upsert"}
    event = {"type": "t", "key": f"k{number % KEYS}", "headers": headers}
    return event if headers["operation"] == "delete" else {**event, "value": [number, PADDING]}


def folded(messages: list[Any]) -> dict[str, int]:
    state: dict[str, int] = {}
    for message in messages:
        operation = message["headers"].get("operation")
        if operation == "delete":
            state.pop(message["key"], None)
        elif operation is not None:
            state[message["key"]] = message["value"][0]
    return state


def catch_up(client: httpx.Client, path: str, offset: str, until: str | None = None) -> tuple[list[Any], list[str]]:
    """The messages from an offset on, and the offsets of the pages."""
    messages: list[Any] = []
    offsets = [offset]
    while True:
        query = {"offset": offset} if until is None else {"offset": offset, "until": until}
        page = client.get(path, params=query)
        assert page.status_code == 200, page.text
        messages += page.json()
        if page.headers[NEXT] == offset or "stream-up-to-date" in page.headers:
            return messages, offsets
        offset = page.headers[NEXT]
        offsets.append(offset)


def test_readers_fold_to_the_same_state_wherever_they_are(filled: Filled) -> None:
    client, path = filled.client, filled.path
    state = folded(filled.messages)
    result = filled.compact()
    assert result["compacted"]
    assert result["after_bytes"] < result["before_bytes"] / 2
    assert filled.compact() == {
        "compacted": False,
        "before_bytes": 0,
        "after_bytes": 0,
        "reason": "there is nothing new",
        "first_offset": result["first_offset"],
    }
    head = client.head(path)
    assert head.headers[FIRST] == result["first_offset"]
    assert head.headers[NEXT] == filled.offsets[-1]
    filled.append([change(1), change(2)])
    state |= folded([change(1), change(2)])
    messages, offsets = catch_up(client, path, "-1")
    assert messages[0]["headers"] == {"control": "snapshot-start", "offset": filled.offsets[-2]}
    assert messages[-3]["headers"] == {"control": "snapshot-end", "offset": filled.offsets[-2]}
    assert [message["headers"]["operation"] for message in messages[1:-3]] == ["insert"] * (len(messages) - 4)
    assert folded(messages) == state
    assert len(offsets) > 1
    inside = [offset for offset in offsets[1:] if offset not in filled.offsets]
    assert [*inside, *filled.offsets] == sorted([*inside, *filled.offsets])
    assert catch_up(client, path, result["first_offset"])[0] == messages
    for offset in (*offsets[1:], filled.offsets[-2]):  # in the snapshot, and where it ends
        rest = catch_up(client, path, offset)[0]
        assert catch_up_between(client, path, result["first_offset"], offset) + rest == messages
    for number, offset in enumerate(filled.offsets[:-1]):  # what is replaced is still there for those who were there
        assert catch_up(client, path, offset)[0] == filled.messages[30 * number :]


def test_a_snapshot_and_what_follows_are_in_one_response_if_there_is_room(client: httpx.Client) -> None:
    """So a client that reads one response has the present state."""
    short = Filled(client, changes=0)
    for first in range(0, 30, 10):
        short.append([{**change(number), "key": "k"} for number in range(first, first + 10)])
    first_offset = short.compact()["first_offset"]
    for last in ([], [change(2)]):
        if last:
            short.append(last)
        for offset in ("-1", first_offset):
            page = client.get(short.path, params={"offset": offset})
            assert (page.headers[NEXT], page.headers["stream-up-to-date"]) == (short.offsets[-1], "true")
            assert folded(page.json()) == folded(short.messages)
            assert page.json()[len(page.json()) - len(last) :] == last
            again = client.get(short.path, params={"offset": offset}, headers={"if-none-match": page.headers["etag"]})
            assert again.status_code == 304
    short.append([change(3)])
    stale = client.get(short.path, params={"offset": "-1"}, headers={"if-none-match": page.headers["etag"]})
    assert (stale.status_code, stale.json()[-1]) == (200, change(3))
    until = client.get(short.path, params={"offset": "-1", "until": short.offsets[-3]})
    assert folded(until.json()) == folded(short.messages[:30])
    part = client.get(short.path, params={"offset": "-1", "until": short.offsets[-1]})
    assert (part.headers[NEXT], folded(part.json())) == (short.offsets[-3], folded(short.messages[:30]))


def events_of(client: httpx.Client, path: str, offset: str) -> list[tuple[str, Any]]:
    """The events up to the one that says that the reader is up to date."""
    events: list[tuple[str, Any]] = []
    with client.stream("GET", path, params={"offset": offset, "live": "sse"}) as response:
        kind, data = "", ""
        for line in response.iter_lines():
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                data += line[5:]
            elif not line and kind:
                events.append((kind, json.loads(data)))
                if kind == "control" and events[-1][1].get("upToDate"):
                    break
                kind, data = "", ""
    return events


def test_live_readers_get_the_snapshot_and_go_on_at_the_tail(filled: Filled) -> None:
    client, path = filled.client, filled.path
    filled.compact()
    for offset in ("-1", filled.offsets[3], filled.offsets[-1]):
        events = events_of(client, path, offset)
        expected = catch_up(client, path, offset)[0]
        assert [message for kind, data in events if kind == "data" for message in data] == expected
        assert events[-1][1]["streamNextOffset"] == filled.offsets[-1]
    _, offsets = catch_up(client, path, "-1")
    polled, offset = [], "-1"
    while offset != filled.offsets[-1]:
        page = client.get(path, params={"offset": offset, "live": "long-poll"})
        polled += page.json()
        offset = page.headers[NEXT]
    assert folded(polled) == folded(filled.messages)
    query = {"stream": f"{filled.name}@{offsets[1]}"}
    combined: list[Any] = []
    last_id = ""
    with client.stream("GET", f"{STREAM}/__ds/live", params=query) as response:
        for line in response.iter_lines():
            if line.startswith("id:"):
                last_id = line[3:]
                if combined:
                    break
            elif line.startswith("data:") and "messages" in line:
                combined += json.loads(line[5:])["messages"]
    with client.stream("GET", f"{STREAM}/__ds/live", params=query, headers={"last-event-id": last_id}) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                combined += event.get("messages", [])
                if event["nextOffset"] == filled.offsets[-1]:
                    break
    assert combined == catch_up(client, path, offsets[1])[0]


def test_a_live_reader_does_not_notice_that_the_stream_is_compacted(filled: Filled) -> None:
    client, path = filled.client, filled.path
    with client.stream("GET", path, params={"offset": "now", "live": "sse"}) as response:
        lines = response.iter_lines()
        for line in lines:
            if line.startswith("data:"):
                break
        filled.compact()
        filled.append([change(1)])
        assert next(json.loads(line[5:]) for line in lines if line.startswith("data:[")) == [change(1)]


def test_forks_before_and_after_a_compaction_read_the_same(filled: Filled) -> None:
    client = filled.client
    forks: dict[str, list[Any]] = {}

    def fork(offset: str) -> httpx.Response:
        name = f"{filled.path}-{len(forks)}"
        response = client.put(name, headers={"stream-forked-from": filled.path, "stream-fork-offset": offset})
        if response.status_code == 201:
            forks[name] = catch_up(client, name, "-1")[0]
        return response

    assert fork(filled.offsets[5]).status_code == 201
    filled.compact()
    assert fork(filled.offsets[5]).status_code == 201
    assert fork(filled.offsets[-1]).status_code == 201
    before, replaced, after = forks.values()
    assert before == replaced == filled.messages[:150]
    assert folded(after) == folded(filled.messages)
    refused = fork(catch_up(client, filled.path, "-1")[1][1])
    assert (refused.status_code, "inside a snapshot" in refused.json()["detail"]) == (400, True)
    filled.append([change(7)] * 30)
    filled.compact()
    client.delete(filled.path)
    assert {name: catch_up(client, name, "-1")[0] for name in forks} == forks


def test_offsets_of_a_snapshot_are_gone_with_the_stream(filled: Filled) -> None:
    client, path = filled.client, filled.path
    filled.compact()
    _, offsets = catch_up(client, path, "-1")
    assert client.delete(path).status_code == 204
    again = Filled(client)
    client.put(path, headers=JSON, content=json.dumps(filled.messages).encode())
    filled.compact()
    for offset in offsets[1:-1]:
        assert client.get(path, params={"offset": offset}).status_code == 410
    number, _, position = offsets[1].partition("_")
    again.compact()
    for wrong in (f"{number}_{int(position) + 1:016d}", f"{int(number) + 10**15:016d}_{position}"):
        assert client.get(again.path, params={"offset": wrong}).status_code in (400, 410)


def test_entity_tags_and_conditions(filled: Filled) -> None:
    client, path = filled.client, filled.path
    tag = client.get(path, params={"offset": "-1", "until": filled.offsets[1]}).headers["etag"]
    filled.compact()
    page = client.get(path, params={"offset": "-1"})
    again = client.get(path, params={"offset": "-1"}, headers={"if-none-match": page.headers["etag"]})
    assert again.status_code == 304
    kept = client.get(path, params={"offset": "-1", "until": filled.offsets[1]}, headers={"if-none-match": tag})
    assert kept.status_code == 304  # before the snapshot ends, a reader gets what it got
    filled.append([change(n) for n in range(30)])
    filled.compact()
    newer = client.get(path, params={"offset": "-1"}, headers={"if-none-match": page.headers["etag"]})
    assert (newer.status_code, newer.headers["etag"] != page.headers["etag"]) == (200, True)
    head = client.head(path).headers["etag"]
    for match, status in ((page.headers["etag"], 412), (head, 204), (head, 412)):
        response = client.post(path, headers=JSON | {"if-match": match}, content=b"[1]")
        assert response.status_code == status


def test_lists_and_splits_know_where_a_stream_begins(filled: Filled) -> None:
    client = filled.client
    result = filled.compact()
    filled.append([change(5)])
    listed = client.get(f"{STREAM}/__ds/streams", params={"prefix": filled.name}).json()["streams"]
    assert [one["path"] for one in listed] == [filled.name]
    assert listed[0]["first_offset"] == result["first_offset"]
    assert result["after_bytes"] < listed[0]["bytes"] < 2 * result["after_bytes"]
    splits = client.get(f"{STREAM}/__ds/splits", params={"path": filled.name, "parts": "3"}).json()
    assert splits["bytes"] == listed[0]["bytes"]
    places = [result["first_offset"], *splits["splits"], splits["until"]]
    assert len(places) == 4
    parts = [catch_up_between(client, filled.path, *pair) for pair in pairwise(places)]
    assert [message for part in parts for message in part] == catch_up(client, filled.path, "-1")[0]
    records = client.get(f"{STREAM}/__ds/records", params={"path": filled.name, "compact": "true"}).json()
    assert records["ends"][-1] == listed[0]["bytes"]
    assert records["times_ms"] == sorted(records["times_ms"])


def catch_up_between(client: httpx.Client, path: str, offset: str, until: str) -> list[Any]:
    messages: list[Any] = []
    while offset != until:
        page = client.get(path, params={"offset": offset, "until": until})
        messages += page.json()
        offset = page.headers[NEXT]
    return messages


def test_requests_that_cannot_be_done_say_why(client: httpx.Client) -> None:
    missing = client.post(f"{STREAM}/__ds/compact", params={"path": "missing"})
    assert missing.status_code == 404
    client.put(f"{STREAM}/text", headers={"content-type": "text/plain"}, content=b"x")
    text = client.post(f"{STREAM}/__ds/compact", params={"path": "text"})
    assert (text.status_code, "state events" in text.json()["detail"]) == (409, True)
    body = client.post(f"{STREAM}/__ds/compact", params={"path": "text"}, content=b"x")
    assert (body.status_code, "no body" in body.json()["detail"]) == (400, True)


def test_columns_have_the_offsets_of_the_snapshot_and_of_what_follows(filled: Filled) -> None:
    """Positions in offsets leap from the end of the snapshot to that of the stream after it."""
    filled.compact()
    filled.append([change(1), change(2)])
    with Client(f"{str(filled.client.base_url).rstrip('/')}{STREAM}") as client:
        stream = client.stream(filled.name)
        records = {record.offset: record.time for record in stream.records()}
        assert len({offset.partition("_")[0] for offset in records}) == 2
        rows = stream.arrow(columns=["offset", "time", "value"]).to_pylist()
        assert [row["value"].encode() for row in rows] == stream.read(type=bytes).all()
        assert {row["offset"]: row["time"] for row in rows} == records
        last = rows[-1]["offset"]
        assert stream.arrow(offset=last)["value"].to_pylist() == [row["value"] for row in rows if row["offset"] == last]


# Tables

TABLE = "/v1/table"
LAST = "stp-last-seqno"


@pytest.fixture
def table(client: httpx.Client) -> str:
    """A table of which keys 0 to 4 are changed by turns, and key 9 is deleted."""
    path = f"{TABLE}/c/{uuid.uuid4().hex}"
    assert client.put(path, headers={"content-type": "text/sequence"}).status_code == 201
    rows = "".join(f"+\tk{9 if n == 7 else n % 5}\t{n}\n" for n in range(100)) + "-\tk9\t\n+\tk0\tlast\n"
    for part in (rows, "+\tk1\tafter\n"):
        assert client.post(path, headers={"content-type": "text/sequence"}, content=part).status_code < 300
    return path


def seqnos(client: httpx.Client, table: str, **query: int) -> list[int]:
    return seqnos_of(client.get(table, params={"timeout": 0, **query}))


def seqnos_of(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return [int(row.split("\t")[0]) for row in response.text.splitlines()]


def followed(response: httpx.Response) -> list[int]:
    """The SeqNos that a follower takes, which raises an error if a row is missing."""
    following = TableFollowing()
    following.begin(response.headers)
    rows = following.feed(response.content) + following.end()
    following.finish()
    return [row.seqno for row in rows]


@pytest.mark.parametrize("compacts", [False, True])
def test_only_tables_without_compaction_are_gapless(client: httpx.Client, table: str, compacts: bool) -> None:
    """Rows may be removed at any time, between two requests of one reader too."""
    if compacts:
        client.patch(table, headers={"stream-compact": "true"}).raise_for_status()
    assert (client.head(table).headers.get(GAPLESS) == "true") is not compacts
    assert (client.get(table, params=NOW).headers.get(GAPLESS) == "true") is not compacts


def test_rows_of_a_compacted_table_keep_their_seqnos(client: httpx.Client, table: str) -> None:
    active = client.get(table, params={"view": "active"}).text
    everything = seqnos(client, table)
    assert client.head(table).headers["stp-gapless"] == "true"
    result = client.post(f"{table}/compact").json()
    assert result["compacted"]
    assert result["first_seqno"] == 1  # the deletion is young, so nothing is missing
    assert "stp-gapless" not in client.head(table).headers
    left = seqnos(client, table)
    assert left == [98, 99, 100, 101, 102, 103]
    assert seqnos(client, table, since_id=0) == left
    for response in (client.head(table), client.get(table, params=NOW), client.get(table, params=ACTIVE)):
        assert GAPLESS not in response.headers
    assert followed(client.get(table, params=NOW)) == left
    for since_id in (1, 50, 97, 98, 101, 103):  # whoever was there reads what was there
        rows = seqnos(client, table, since_id=since_id)
        assert rows == everything[since_id:]
    assert seqnos(client, table, since_id=-2) == [102, 103]
    assert seqnos(client, table, until_id=100) == [98, 99, 100]
    assert client.get(table, params={"view": "active"}).text == active
    tag = client.get(table, params={"timeout": 0}).headers["etag"]
    assert client.get(table, params={"timeout": 0}, headers={"if-none-match": tag}).status_code == 304
    head = client.head(table)
    assert (head.headers[LAST], head.headers["etag"]) == ("103", tag)
    changed = client.post(table, headers={"content-type": "text/sequence", "if-match": tag}, content="+\tk2\tnew\n")
    assert changed.headers[LAST] == "104"
    assert seqnos(client, table) == [*left, 104]


def test_views_of_a_compacted_stream_and_table_are_as_before(client: httpx.Client, filled: Filled) -> None:
    view = f"{TABLE}/view/{uuid.uuid4().hex}"
    filled.compact()
    headers = {"content-type": "text/sequence", "stp-view-of": filled.path, "stp-view-type": "t"}
    created = client.put(view, headers=headers)
    assert created.status_code == 201, created.text
    wanted = folded(filled.messages)
    wait_until(lambda: live_of(client, view) == wanted)
    assert client.post(f"{view}/compact").status_code == 200
    filled.append([change(7), {"type": "t", "key": "k8", "headers": {"operation": "delete"}}])
    wanted = folded(filled.messages)
    wait_until(lambda: live_of(client, view) == wanted)


def live_of(client: httpx.Client, table: str) -> dict[str, int]:
    rows = client.get(table, params={"view": "active"}).text.splitlines()
    return {row.split("\t")[3]: json.loads(row.split("\t")[4])[0] for row in rows}
