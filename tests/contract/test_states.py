"""Entities by URL, over every edge: against the plain fold of random histories, and everything that can go wrong."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import random
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.contract.tables import SCHEMA
from tests.edges import DURABLE, EDGES_OF_SHARED, edge, root_of
from tests.metrics import value_in
from tests.waiting import LIMIT_S, wait_until

JSON = {"content-type": "application/json"}

Plain = dict[tuple[str, str], str]


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with edge(request.param) as server:
        yield root_of(request.param, server)


@pytest.fixture(scope="module")
def client(root: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=root, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
def path(client: httpx.Client) -> str:
    name = f"states/{uuid.uuid4().hex}"
    assert client.put(f"/{name}", headers=JSON).status_code == 201
    return name


def upsert(entity_type: str, key: str, value: str = "1") -> str:
    head = f'{{"type":{json.dumps(entity_type)},"key":{json.dumps(key)},"value":{value}'
    return head + ',"headers":{"operation":"upsert"}}'


def delete(entity_type: str, key: str) -> str:
    return f'{{"type":{json.dumps(entity_type)},"key":{json.dumps(key)},"headers":{{"operation":"delete"}}}}'


def control(name: str) -> str:
    return f'{{"headers":{{"control":"{name}"}}}}'


def append(client: httpx.Client, path: str, *messages: str) -> str:
    """Append messages and return the offset after them."""
    response = client.post(f"/{path}", content=f"[{','.join(messages)}]".encode(), headers=JSON)
    assert response.status_code in (200, 204), response.text
    return response.headers["stream-next-offset"]


def get(client: httpx.Client, path: str, *, method: str = "GET", headers: Any = None, **query: Any) -> httpx.Response:
    return client.request(method, "/__ds/state", params={"path": path, **query}, headers=headers)


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, str(response.json()["type"]).removeprefix("urn:headwater:")


def written(text: str) -> Plain:
    """The entities of a page, with the text of their values."""
    values: Plain = {}
    for entity in text.split('{"type":')[1:]:
        head, _, rest = entity.partition(',"value":')
        parts = json.loads('{"type":' + head + "}")
        values[parts["type"], parts["key"]] = rest[: rest.index(',"offset":')]
    return values


def entities(client: httpx.Client, path: str, limit: int = 1_000, **query: Any) -> Plain:
    """All entities, page by page, in their order."""
    values: Plain = {}
    after: str | None = ""
    while after is not None:
        response = get(client, path, limit=limit, after=after, **query)
        assert response.status_code == 200, response.text
        page = response.json()
        assert len(page["entities"]) <= limit
        values |= written(response.text)
        after = page["next"]
    assert list(values) == sorted(values)
    return values


# One entity


def test_one_entity(client: httpx.Client, path: str) -> None:
    offset = append(client, path, upsert("price", "AAPL", '{"usd": 1.50,  "n": 12345678901234567890123}'))
    response = get(client, path, type="price", key="AAPL")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["stream-next-offset"] == offset
    text = '{"type":"price","key":"AAPL","value":{"usd": 1.50,  "n": 12345678901234567890123},"offset":"%s"}'
    assert response.text == text % offset
    head = get(client, path, type="price", key="AAPL", method="HEAD")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("stream-next-offset", "etag", "content-type", "content-length"):
        assert head.headers[name] == response.headers[name]


def test_an_entity_that_is_not_there(client: httpx.Client, path: str) -> None:
    response = get(client, path, type="price", key="AAPL")
    assert problem(response) == (404, "entity-not-found")
    beginning = response.headers["stream-next-offset"]
    append(client, path, upsert("price", "AAPL"), upsert("other", "X"))
    offset = append(client, path, delete("price", "AAPL"))
    response = get(client, path, type="price", key="AAPL")
    assert (problem(response), response.headers["stream-next-offset"]) == ((404, "entity-not-found"), offset)
    assert beginning < offset
    assert get(client, path, type="price", key="AAPL", method="HEAD").status_code == 404
    assert get(client, path, type="price", key="X").status_code == 404
    assert get(client, path, type="other", key="X").status_code == 200


def test_a_stream_that_is_not_there(client: httpx.Client) -> None:
    assert problem(get(client, "states/none", type="a", key="b")) == (404, "stream-not-found")


def test_reads_see_the_reader_s_own_writes(client: httpx.Client, path: str) -> None:
    for number in range(50):
        offset = append(client, path, upsert("n", "1", str(number)))
        entity = get(client, path, type="n", key="1").json()
        assert (entity["value"], entity["offset"]) == (number, offset)


def test_the_offset_is_one_for_if_match_and_for_reading_on(client: httpx.Client, path: str) -> None:
    append(client, path, upsert("n", "1", "1"))
    offset = get(client, path, type="n", key="1").json()["offset"]
    again = upsert("n", "1", "2")
    tag = {**JSON, "if-match": f'"{offset}"'}
    assert client.post(f"/{path}", content=again, headers=tag).status_code in (200, 204)
    assert client.post(f"/{path}", content=again, headers=tag).status_code == 412
    assert client.get(f"/{path}", params={"offset": offset}).json() == [json.loads(again)]


NAMES = ("a b", "a/b", "ü", "😀", "%2F", "+", "a\x00b", "\x01", "\x00", '"', "\\", "a&b=c", "ÿ", "￿", "../x", "'", "#?")


def test_names_with_any_character(client: httpx.Client, path: str) -> None:
    append(client, path, *[upsert(one, other, json.dumps(one + other)) for one in NAMES for other in NAMES])
    for one in NAMES:
        for other in NAMES:
            assert get(client, path, type=one, key=other).json()["value"] == one + other
        assert list(entities(client, path, limit=5, type=one)) == sorted((one, other) for other in NAMES)
    assert len(entities(client, path, limit=7)) == len(NAMES) ** 2


# Pages


def test_pages(client: httpx.Client, path: str) -> None:
    assert get(client, path).json()["entities"] == []
    offset = append(client, path, *[upsert(one, key, f'"{one}{key}"') for key in "cab" for one in ("y", "x")])
    page = get(client, path, limit=4).json()
    assert [(one["type"], one["key"], one["value"], one["offset"]) for one in page["entities"]] == [
        ("x", "a", "xa", offset), ("x", "b", "xb", offset), ("x", "c", "xc", offset), ("y", "a", "ya", offset)
    ]  # fmt: skip
    assert (page["offset"], page["skipped"]) == (offset, 0)
    last = get(client, path, limit=4, after=page["next"]).json()
    assert [(one["type"], one["key"]) for one in last["entities"]] == [("y", "b"), ("y", "c")]
    assert last["next"] is None
    assert list(entities(client, path, type="y", limit=1)) == [("y", "a"), ("y", "b"), ("y", "c")]
    assert entities(client, path, type="z") == {}
    assert len(get(client, path).json()["entities"]) == 6


def test_pages_of_large_entities(client: httpx.Client, path: str) -> None:
    large = {key: json.dumps(key * 400_000) for key in "abcdef"}
    for key, value in large.items():
        append(client, path, upsert("t", key, value), upsert("t", f"{key}small", '"s"'))
    expected = {("t", key): value for key, value in large.items()} | {("t", f"{key}small"): '"s"' for key in large}
    assert entities(client, path) == expected
    assert len(get(client, path, limit=1_000).json()["entities"]) == 4  # less than a mebibyte
    response = get(client, path, type="t", key="a")
    assert response.json()["value"] == "a" * 400_000


def test_changes_between_pages_show_in_later_pages(client: httpx.Client, path: str) -> None:
    append(client, path, *[upsert("t", key, "1") for key in "abcdef"])
    first = get(client, path, limit=2).json()
    append(client, path, delete("t", "b"), delete("t", "c"), upsert("t", "aa", "2"), upsert("t", "d", "2"))
    rest = get(client, path, after=first["next"]).json()
    assert [(one["key"], one["value"]) for one in rest["entities"]] == [("d", 2), ("e", 1), ("f", 1)]
    fixed = get(client, path, after=first["next"], at=first["offset"]).json()
    assert [(one["key"], one["value"]) for one in fixed["entities"]] == [("c", 1), ("d", 1), ("e", 1), ("f", 1)]
    assert fixed["offset"] == first["offset"]


# The fold


def history(chosen: random.Random, count: int) -> list[list[str]]:
    """Random appends."""
    types, keys = ("user", "order", "ü/x"), [f"k{n}" for n in range(12)] + ["a b", "é"]
    values = ("1.50", '{"a": [1, {"b": null}]}', "12345678901234567890", '"\\u00e9"', "true")

    def message() -> str:
        what = chosen.random()
        if what < 0.02:
            return control("reset")
        if what < 0.1:
            return chosen.choice(
                [control("snapshot-start"), control("snapshot-end"), "17", '{"type":"user"}', '"},{"', "[[]]"]
            )
        if what < 0.3:
            return delete(chosen.choice(types), chosen.choice(keys))
        return upsert(chosen.choice(types), chosen.choice(keys), chosen.choice(values))

    return [[message() for _ in range(chosen.choice((1, 1, 2, 5)))] for _ in range(count)]


def fold(state: Plain, messages: list[str]) -> Plain:
    """The plain fold, by the letter of the State Protocol."""
    for text in messages:
        event = json.loads(text)
        if not isinstance(event, dict) or "headers" not in event:
            continue
        if event["headers"].get("control") == "reset":
            state = {}
        elif "operation" in event["headers"]:
            name = (event["type"], event["key"])
            state = {other: value for other, value in state.items() if other != name}
            if event["headers"]["operation"] != "delete":
                state[name] = text[text.index('"value":') + 8 : text.rindex(',"headers"')]
    return state


@pytest.mark.parametrize("seed", range(3))
def test_the_state_at_any_offset_is_that_of_the_plain_fold(client: httpx.Client, path: str, seed: int) -> None:
    chosen = random.Random(seed)
    states: list[tuple[str, Plain]] = [(client.head(f"/{path}").headers["stream-next-offset"], {})]
    for messages in history(chosen, 60):
        offset = append(client, path, *messages)
        states.append((offset, fold(states[-1][1], messages)))
        if chosen.random() < 0.2:
            assert entities(client, path, limit=4) == states[-1][1]
    for offset, state in chosen.sample(states, 12):
        assert entities(client, path, limit=chosen.choice((1, 3, 100)), at=offset) == state
        name = chosen.choice(list(states[-1][1]) or [("user", "k1")])
        response = get(client, path, type=name[0], key=name[1], at=offset)
        assert response.headers["stream-next-offset"] == offset
        assert response.status_code == (200 if name in state else 404)
    assert entities(client, path, at="now") == states[-1][1]
    assert entities(client, path, at="-1") == {}
    assert get(client, path).json()["skipped"] == get(client, path, at=states[-1][0]).json()["skipped"]


def test_a_stream_that_is_large(client: httpx.Client, path: str) -> None:
    state: Plain = {}
    for first in range(0, 6_000, 500):
        messages = [upsert("t", str(n * 7 % 1_000), json.dumps(f"value {n}" * 5)) for n in range(first, first + 500)]
        append(client, path, *messages)
        state |= fold({}, messages)
    assert entities(client, path) == state
    append(client, path, control("reset"), upsert("t", "x"))
    assert entities(client, path) == {("t", "x"): "1"}


def test_messages_that_are_no_events_are_counted(client: httpx.Client, path: str) -> None:
    append(client, path, "1", upsert("t", "k"), '{"type":"t"}', upsert("t", "k" * 3_000))
    page = get(client, path).json()
    assert (len(page["entities"]), page["skipped"]) == (1, 3)


# At an offset or a time


def test_at_a_time(client: httpx.Client, path: str) -> None:
    append(client, path, upsert("t", "k", "1"))
    records = client.get("/__ds/records", params={"path": path}).json()["records"]
    at = datetime.fromisoformat(records[0]["time"])
    while datetime.now(UTC) <= at + timedelta(milliseconds=5):
        """The next append is at another time."""
    append(client, path, upsert("t", "k", "2"))
    second = client.get("/__ds/records", params={"path": path}).json()["records"][1]["time"]
    assert entities(client, path, at=second) == {("t", "k"): "1"}
    assert entities(client, path, at=records[0]["time"]) == {}
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert entities(client, path, at=later) == {("t", "k"): "2"}
    unquoted = client.get(f"/__ds/state?path={path}&at=2000-01-01T00:00:00+02:00")
    assert unquoted.json()["entities"] == []


def test_an_offset_that_the_stream_does_not_have(client: httpx.Client, path: str) -> None:
    offset = append(client, path, upsert("t", "k", "1"))
    number, position = offset.split("_")
    assert get(client, path, at=f"{number}_{int(position) + 1:016}").status_code == 400
    assert get(client, path, at=f"{number}_{int(position) - 1:016}").status_code == 400
    assert get(client, path, at=f"{int(number) + 10**9:016}_{position}").status_code == 400
    for at in ("yesterday", "", "2020-01-01", "2020-99-01T00:00:00Z"):
        assert get(client, path, at=at).status_code == 400, at


def trim(client: httpx.Client, path: str, before: str) -> None:
    assert client.post("/__ds/trim", params={"path": path, "before": before}).is_success


def test_a_stream_that_is_trimmed(client: httpx.Client, path: str) -> None:
    beginning = client.head(f"/{path}").headers["stream-next-offset"]
    offsets = [
        append(client, path, upsert("t", key, "1"), upsert("t", "all", str(number)))
        for number, key in enumerate("abcd")
    ]
    before = datetime.now(UTC)
    assert len(entities(client, path)) == 5
    trim(client, path, offsets[1])
    assert list(entities(client, path)) == [("t", "all"), ("t", "c"), ("t", "d")]
    assert get(client, path, type="t", key="a").status_code == 404
    assert list(entities(client, path, at=offsets[2])) == [("t", "all"), ("t", "c")]
    assert entities(client, path, at=offsets[1]) == {}
    for at in (beginning, offsets[0], "2020-01-01T00:00:00Z"):
        gone = get(client, path, at=at)
        assert problem(gone) == (410, "offset-trimmed")
        assert gone.headers["stream-first-offset"] == offsets[1]
    assert list(entities(client, path, at=(before + timedelta(days=1)).isoformat())) == list(entities(client, path))
    trim(client, path, "now")
    assert entities(client, path) == {}
    append(client, path, upsert("t", "e", "1"))
    assert entities(client, path) == {("t", "e"): "1"}


def test_a_state_at_an_offset_whose_stream_is_trimmed_between_its_pages(client: httpx.Client, path: str) -> None:
    offsets = [append(client, path, upsert("t", key)) for key in "abcdef"]
    first = get(client, path, at=offsets[4], limit=2).json()
    assert [entity["key"] for entity in first["entities"]] == ["a", "b"]
    trim(client, path, offsets[2])
    rest = get(client, path, at=offsets[4], after=first["next"]).json()
    assert [entity["key"] for entity in rest["entities"]] == ["d", "e"]
    trim(client, path, offsets[4])
    assert get(client, path, at=offsets[4], after=first["next"]).json()["entities"] == []
    trim(client, path, offsets[5])
    assert problem(get(client, path, at=offsets[4], after=first["next"])) == (410, "offset-trimmed")


# A stream that is compacted


def compact(client: httpx.Client, path: str) -> str:
    """Compact a stream, and return the offset at which it begins."""
    response = client.post("/__ds/compact", params={"path": path})
    assert response.is_success, response.text
    assert response.json()["compacted"], response.text
    return str(response.json()["first_offset"])


@pytest.mark.parametrize("warm", [False, True])
def test_a_stream_that_is_compacted(client: httpx.Client, path: str, warm: bool) -> None:
    states: list[tuple[str, Plain]] = [(client.head(f"/{path}").headers["stream-next-offset"], {})]
    for number in range(30):
        value = json.dumps([number, "x" * 500])
        messages = [upsert("t", str(key), value) for key in range(number % 7, 60, 7)]
        messages += [delete("t", str(number)), "17"]
        states.append((append(client, path, *messages), fold(states[-1][1], messages)))
    if warm:
        assert entities(client, path) == states[-1][1]
    begin = compact(client, path)
    assert entities(client, path) == states[-1][1]
    assert get(client, path).json()["offset"] == states[-1][0]
    assert get(client, path).json()["skipped"] == 30
    messages = [upsert("t", "1", "1"), delete("t", "2")]
    states.append((append(client, path, *messages), fold(states[-1][1], messages)))
    for offset, state in (states[-1], states[-2], states[10], states[0]):  # what is replaced is still there
        assert entities(client, path, at=offset) == state
    assert entities(client, path, at=begin) == entities(client, path, at="-1") == {}
    incarnation, position = begin.split("_")
    assert get(client, path, at=f"{incarnation}_{int(position) + 1:016}").status_code == 400
    for at, state in ((datetime.now(UTC) + timedelta(days=1), states[-1][1]), (datetime(2020, 1, 1, tzinfo=UTC), {})):
        assert entities(client, path, at=at.isoformat()) == state


def test_a_stream_that_is_compacted_and_trimmed(client: httpx.Client, path: str) -> None:
    for number in range(40):
        end = append(client, path, upsert("t", "a", json.dumps("x" * 500)), upsert("t", "b", str(number)))
    before = get(client, path, type="t", key="b", at=end)
    compact(client, path)
    trim(client, path, end)  # as asked: also what the snapshot has
    assert entities(client, path) == {}
    again = get(client, path, type="t", key="b", at=end, headers={"if-none-match": before.headers["etag"]})
    assert again.status_code == 404
    assert problem(get(client, path, at="2020-01-01T00:00:00Z")) == (410, "offset-trimmed")


def test_a_state_whose_beginning_was_trimmed_and_is_only_in_a_later_snapshot(client: httpx.Client, path: str) -> None:
    """The events that are left before the end of the snapshot are no state."""
    ends = []
    for number in range(40):
        ends.append(append(client, path, upsert("t", str(number % 3), json.dumps("x" * 500))))
    compact(client, path)
    trim(client, path, ends[30])
    now = entities(client, path)
    assert len(now) == 3
    for query in ({}, {"type": "t", "key": "0"}, {"type": "t", "key": "2"}):
        for end in (ends[30], ends[31]):
            assert problem(get(client, path, at=end, **query)) == (410, "offset-trimmed")
    assert entities(client, path, at=ends[39]) == now


# Other streams, and streams that change


def test_a_stream_that_is_deleted_and_created_again(client: httpx.Client, path: str) -> None:
    old = append(client, path, upsert("t", "k", "1"))
    assert entities(client, path) == {("t", "k"): "1"}
    assert client.delete(f"/{path}").status_code == 204
    assert problem(get(client, path)) == (404, "stream-not-found")
    assert client.put(f"/{path}", headers=JSON).status_code == 201
    assert entities(client, path) == {}
    append(client, path, upsert("t", "l", "2"))
    assert entities(client, path) == {("t", "l"): "2"}
    assert problem(get(client, path, at=old)) == (410, "offset-gone")


def test_a_stream_that_is_closed(client: httpx.Client, path: str) -> None:
    append(client, path, upsert("t", "k", "1"))
    assert entities(client, path) == {("t", "k"): "1"}
    client.post(f"/{path}", content=upsert("t", "k", "2"), headers={**JSON, "stream-closed": "true"})
    assert entities(client, path) == {("t", "k"): "2"}


def test_a_fork(client: httpx.Client, path: str) -> None:
    append(client, path, upsert("t", "k", "1"))
    offset = append(client, path, upsert("t", "l", "1"))
    append(client, path, upsert("t", "k", "2"))
    fork = {"stream-forked-from": f"/v1/stream/{path}", "stream-fork-offset": offset}
    if client.base_url.path != "/v1/stream/":
        fork["stream-forked-from"] = f"{client.base_url.path}{path}"
    assert client.put(f"/{path}-fork", headers={**JSON, **fork}).status_code == 201
    append(client, f"{path}-fork", upsert("t", "l", "3"))
    assert entities(client, f"{path}-fork") == {("t", "k"): "1", ("t", "l"): "3"}
    assert entities(client, f"{path}-fork", at=offset) == {("t", "k"): "1", ("t", "l"): "1"}
    assert entities(client, path) == {("t", "k"): "2", ("t", "l"): "1"}


def test_streams_and_tables_that_have_no_state(client: httpx.Client, path: str) -> None:
    assert client.put(f"/{path}-text", headers={"content-type": "text/plain"}).status_code == 201
    response = get(client, f"{path}-text")
    assert problem(response) == (409, "no-state")
    assert "text/plain" in response.json()["detail"]
    tables = str(client.base_url).replace("/v1/stream", "/v1/table")
    assert httpx.put(f"{tables}{path}-table", headers=SCHEMA).status_code == 201
    response = get(client, f"{path}-table", type="t", key="k")
    assert problem(response) == (409, "no-state")
    assert f"GET /v1/table/{path}-table?view=active" in response.json()["detail"]


@pytest.mark.parametrize(
    "query",
    [
        {"key": "k"},
        {"type": "", "key": "k"},
        {"type": "t", "key": ""},
        {"limit": "0"},
        {"limit": "10001"},
        {"limit": "x"},
        {"after": "%"},
        {"after": "A"},
        {"after": "A" * 6_000},
        {"after": "é"},
    ],
)
def test_invalid_queries(client: httpx.Client, path: str, query: dict[str, str]) -> None:
    assert problem(get(client, path, **query)) == (400, "invalid-query")


def test_a_request_without_a_path(client: httpx.Client) -> None:
    assert client.get("/__ds/state").status_code == 400


def test_other_methods(client: httpx.Client, path: str) -> None:
    response = get(client, path, method="POST")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


# Caches and encodings


def test_a_known_answer_is_not_sent_again(client: httpx.Client, path: str) -> None:
    append(client, path, upsert("t", "k", json.dumps("x" * 5_000)))
    for query in ({"type": "t", "key": "k"}, {}):
        for encoding in ("identity", "gzip"):
            first = get(client, path, headers={"accept-encoding": encoding}, **query)
            assert first.headers["cache-control"] == "no-cache"
            assert "accept-encoding" in first.headers["vary"]
            tagged = {"if-none-match": first.headers["etag"], "accept-encoding": encoding}
            again = get(client, path, headers=tagged, **query)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
    append(client, path, upsert("t", "other"))
    assert get(client, path, headers=tagged).status_code == 200


def test_a_large_entity_can_be_compressed(client: httpx.Client, path: str) -> None:
    value = json.dumps("".join(random.Random(1).choices("abcdef", k=300_000)))
    append(client, path, upsert("t", "k", value))
    request = client.build_request(
        "GET", "/__ds/state", params={"path": path, "type": "t", "key": "k"}, headers={"accept-encoding": "gzip"}
    )
    response = client.send(request, stream=True)
    body = b"".join(response.iter_raw())
    assert response.headers["content-encoding"] == "gzip"
    assert len(body) < len(value) * 0.7
    assert written("," + gzip.decompress(body).decode()) == {("t", "k"): value}


# Many at once


def test_many_requests_at_once_while_there_are_appends(client: httpx.Client, path: str) -> None:
    """The state of each answer is the one at its offset, and it has what was appended before the request."""
    states: dict[str, int] = {append(client, path, upsert("n", "total", "0")): 0}

    def read() -> None:
        for _ in range(15):
            least = max(states.values())
            entity = get(client, path, type="n", key="total").json()
            assert entity["value"] >= least
            seen.append((entity["offset"], entity["value"]))

    seen: list[tuple[str, int]] = []
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        reading = [threads.submit(read) for _ in range(3)]
        for number in range(1, 40):
            states[append(client, path, upsert("n", "total", str(number)), upsert("n", str(number)))] = number
        for one in reading:
            one.result()
    assert [states[offset] for offset, _ in seen] == [value for _, value in seen]


def test_large_entities_that_clients_do_not_read_are_limited() -> None:
    """A client that hangs up in the middle of an answer gives its memory back."""
    with edge(DURABLE, large_read_bytes_max=12_000_000) as server, httpx.Client(timeout=LIMIT_S) as client:
        client.base_url = httpx.URL(root_of(DURABLE, server))
        assert client.put("/large", headers=JSON).status_code == 201
        for key in "ab":
            append(client, "large", upsert("t", key, json.dumps(key * 8_000_000)))
        with socket.create_connection((server.host, server.port)) as slow:
            request = "GET /v1/stream/__ds/state?path=large&type=t&key=a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            slow.sendall(request.encode())
            assert slow.recv(12) == b"HTTP/1.1 200"
            append(client, "large", upsert("t", "a", json.dumps("new")))  # the answer keeps the old value
            assert problem(get(client, "large", type="t", key="b")) == (503, "overloaded")
            assert get(client, "large", type="t", key="a").json()["value"] == "new"
        whole = wait_until(lambda: get_if_ok(client, "large", type="t", key="b"), "the memory is free again")
        assert whole.json()["value"] == "b" * 8_000_000


def get_if_ok(client: httpx.Client, path: str, **query: str) -> httpx.Response | None:
    response = get(client, path, **query)
    return response if response.is_success else None


def test_a_state_that_is_too_large() -> None:
    with edge(DURABLE, state_bytes_max=200_000) as server, httpx.Client(timeout=LIMIT_S) as client:
        client.base_url = httpx.URL(root_of(DURABLE, server))
        for name in ("small", "large"):
            assert client.put(f"/{name}", headers=JSON).status_code == 201
        append(client, "small", upsert("t", "k"))
        append(client, "large", *[upsert("t", str(key), json.dumps("x" * 1_000)) for key in range(150)])
        for _ in range(2):
            assert get(client, "small", type="t", key="k").status_code == 200
            refused = get(client, "large", type="t", key="1")
            assert problem(refused) == (409, "state-too-large")
            assert "100000 bytes of memory, half of the limit state_bytes_max" in refused.json()["detail"]
        metrics = httpx.get(f"http://{server.host}:{server.port}/metrics").text
        assert (value_in(metrics, "headwater_states"), value_in(metrics, "headwater_state_builds_total")) == (2, 2)
        assert 0 < value_in(metrics, "headwater_states_bytes") < 10_000
        assert value_in(metrics, "headwater_live_readers", kind="state") == 1
