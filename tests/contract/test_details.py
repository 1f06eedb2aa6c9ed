"""What a stream is beside its bytes, its forks, the NURLs of a table and the caller."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.limits import PRODUCERS_SHOWN_MAX
from headwater.server.auth.editing import add_token
from tests.edges import DURABLE, EDGES_OF_SHARED, edge, free_port, root_of
from tests.nurls import receiver
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
ROWS = {"content-type": "text/sequence"}


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def api(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with (
        edge(request.param) as server,
        httpx.Client(base_url=root_of(request.param, server).removesuffix("/v1/stream"), timeout=60) as client,
    ):
        yield client


@pytest.fixture
def path(api: httpx.Client) -> str:
    path = f"d/{uuid.uuid4().hex}"
    assert api.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
    return path


def details(api: httpx.Client, path: str) -> dict[str, Any]:
    answer = api.get("/v1/stream/__ds/details", params={"path": path})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def fork(api: httpx.Client, source: str, path: str, **headers: str) -> None:
    root = httpx.URL(api.base_url).path.rstrip("/")
    forked = {"stream-forked-from": f"{root}/v1/stream/{source}", **headers}
    assert api.put(f"/v1/stream/{path}", headers=forked).status_code == 201


def test_details_extend_what_a_list_has(api: httpx.Client, path: str) -> None:
    api.post(f"/v1/stream/{path}", headers=JSON, content=b'[1,{"a":2}]')
    [listed] = api.get("/v1/stream/__ds/streams", params={"prefix": path}).json()["streams"]
    answer = details(api, path)
    assert answer.items() >= listed.items()
    assert answer["tail_offset"] == api.head(f"/v1/stream/{path}").headers["stream-next-offset"]
    assert answer["retention"] is None
    assert answer["forked_from"] is None
    assert (answer["fork_count"], answer["live_readers"], answer["trimmed_bytes"]) == (0, 0, 0)
    assert answer["actions"][:3] == ["read", "append", "create"]


def test_details_of_a_stream_that_is_not_there(api: httpx.Client) -> None:
    assert api.get("/v1/stream/__ds/details?path=nothing").status_code == 404
    assert api.get("/v1/stream/__ds/forks?path=nothing").status_code == 404
    assert api.get("/v1/stream/__ds/details").status_code == 400


def test_producers_are_listed_newest_first(api: httpx.Client, path: str) -> None:
    long = "p" * 100
    for number, name in enumerate(("a", "b", long, "a")):
        headers = {"producer-id": name, "producer-epoch": "0", "producer-seq": str(int(number == 3))}
        assert api.post(f"/v1/stream/{path}", headers={**JSON, **headers}, content=b"[1]").is_success
    answer = details(api, path)
    assert answer["producer_count"] == 3
    assert [(one["id"], one["epoch"], one["seq"]) for one in answer["producers"]] == [
        ("a", 0, 1),
        (None, 0, 0),
        ("b", 0, 0),
    ]
    assert len(answer["producers"][1]["digest"]) == 32
    assert answer["producers"][0]["at"] >= answer["producers"][2]["at"]


def test_many_producers_are_counted(api: httpx.Client, path: str) -> None:
    for number in range(PRODUCERS_SHOWN_MAX + 5):
        headers = {"producer-id": f"p{number}", "producer-epoch": "0", "producer-seq": "0"}
        api.post(f"/v1/stream/{path}", headers={**JSON, **headers}, content=b"[1]")
    answer = details(api, path)
    assert (len(answer["producers"]), answer["producer_count"]) == (PRODUCERS_SHOWN_MAX, PRODUCERS_SHOWN_MAX + 5)
    assert answer["producers"][0]["id"] == f"p{PRODUCERS_SHOWN_MAX + 4}"


def test_live_readers_are_counted(api: httpx.Client, path: str) -> None:
    with api.stream("GET", f"/v1/stream/{path}?offset=-1&live=sse"):
        wait_until(lambda: details(api, path)["live_readers"] == 1, "a live reader")
    wait_until(lambda: details(api, path)["live_readers"] == 0, "no live reader")


def test_forks_know_their_source_and_are_found(api: httpx.Client, path: str) -> None:
    api.post(f"/v1/stream/{path}", headers=JSON, content=b"[1]")
    at = api.head(f"/v1/stream/{path}").headers["stream-next-offset"]
    api.post(f"/v1/stream/{path}", headers=JSON, content=b"[2]")
    fork(api, path, f"{path}/fork", **{"stream-fork-offset": at})
    fork(api, f"{path}/fork", f"{path}/fork/of-fork")
    assert details(api, path)["fork_count"] == 1
    source = {"path": path, "offset": at, "sub_offset": 0}
    assert details(api, f"{path}/fork")["forked_from"] == source
    page = api.get("/v1/stream/__ds/forks", params={"path": path}).json()
    assert [(one["path"], one["forked_from"]) for one in page["forks"]] == [(f"{path}/fork", source)]
    assert page["next_after"] is None
    [below] = api.get("/v1/stream/__ds/forks", params={"path": f"{path}/fork"}).json()["forks"]
    assert below["path"] == f"{path}/fork/of-fork"
    api.delete(f"/v1/stream/{path}/fork/of-fork")
    assert api.get("/v1/stream/__ds/forks", params={"path": f"{path}/fork"}).json()["forks"] == []
    behind = api.get("/v1/stream/__ds/forks", params={"path": path, "after": f"{path}/fork"}).json()
    assert behind == {"forks": [], "next_after": None}


def test_forks_of_an_earlier_stream_at_the_path_are_not_its_forks(api: httpx.Client, path: str) -> None:
    fork(api, path, f"{path}-fork")
    api.delete(f"/v1/stream/{path}")
    api.delete(f"/v1/stream/{path}-fork")
    assert api.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
    fork(api, path, f"{path}-new")
    page = api.get("/v1/stream/__ds/forks", params={"path": path}).json()
    assert [one["path"] for one in page["forks"]] == [f"{path}-new"]


def test_nurls_tell_what_came_of_the_last_post(api: httpx.Client) -> None:
    name = uuid.uuid4().hex
    table = f"/v1/table/{name}"
    assert api.put(table, headers=ROWS).status_code == 201

    def nurls() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = api.get("/v1/table/__stp/nurls", params={"name": name}).json()["nurls"]
        return rows

    assert nurls() == []
    nobody = f"http://127.0.0.1:{free_port()}/nurl"
    with receiver() as posts:
        assert api.post(f"{table}/notify", data={"rows": posts.nurl(), "others": nobody}).status_code == 204
        assert {one["last_answer"] for one in nurls()} == {None}
        api.post(table, headers=ROWS, content=b"+\tk\tv\n")

        def answered() -> bool:
            return all(one["last_answer"] for one in nurls())

        wait_until(answered, "both were tried")
        [failing, good] = sorted(nurls(), key=lambda one: str(one["event"]))
        assert (good["event"], good["url"], good["last_answer"]) == ("rows", posts.nurl(), "delivered")
        assert (good["state"], good["lag_rows"], good["failures"], good["notified_seqno"]) == ("idle", 0, 0, 1)
        assert (failing["url"], failing["lag_rows"]) == (nobody, 1)
        assert failing["failures"] >= 1
        assert failing["next_attempt_at"] > failing["last_answer_at"] >= failing["failing_since"]
        assert "no connection" in failing["last_answer"]
    assert api.get("/v1/table/__stp/nurls?name=nothing").status_code == 404


def test_what_a_token_sees(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    admin, _ = add_token(auth, "admin", ["admin:**"], None)
    reader, _ = add_token(auth, "reader", ["read:a/**", "append:a/b"], None)
    with edge(DURABLE, auth) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as api:
        by_admin, by_reader = ({"authorization": f"Bearer {token}"} for token in (admin, reader))

        def get(url: str, headers: dict[str, str]) -> Any:
            return api.get(url, headers=headers).json()

        assert api.get("/").json()["token"] == "required"
        for path in ("secret", "a/b", "a/c"):
            api.put(f"/v1/stream/{path}", headers={**JSON, **by_admin})
            named = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
            api.post(f"/v1/stream/{path}", headers={**JSON, **by_admin, **named}, content=b"[1]")
        for source, path in (("secret", "a/of-secret"), ("a/b", "hidden"), ("a/b", "a/shown")):
            headers = {**by_admin, "stream-forked-from": f"/v1/stream/{source}"}
            assert api.put(f"/v1/stream/{path}", headers=headers).status_code == 201
        own = get("/v1/stream/__ds/caller", by_reader)
        assert own == {
            "name": "reader",
            "scopes": ["read:a/**", "append:a/b"],
            "administers": False,
            "sees_settings": False,
            "expires_at": None,
        }
        assert get("/v1/stream/__ds/caller", by_admin)["administers"] is True
        assert get("/v1/stream/__ds/details?path=a/b", by_reader)["actions"] == ["read", "append"]
        assert len(get("/v1/stream/__ds/details?path=a/b", by_reader)["producers"]) == 1
        assert get("/v1/stream/__ds/details?path=a/c", by_reader)["producers"] is None
        hidden = get("/v1/stream/__ds/details?path=a/of-secret", by_reader)["forked_from"]
        assert (hidden["path"], hidden["sub_offset"]) == (None, 0)
        assert get("/v1/stream/__ds/details?path=a/of-secret", by_admin)["forked_from"]["path"] == "secret"
        page = get("/v1/stream/__ds/forks?path=a/b", by_reader)
        assert [one["path"] for one in page["forks"]] == ["a/shown"]
        both = get("/v1/stream/__ds/forks?path=a/b", by_admin)
        assert [one["path"] for one in both["forks"]] == ["a/shown", "hidden"]
        assert api.get("/v1/stream/__ds/forks?path=secret", headers=by_reader).status_code == 403
        assert api.get("/v1/stream/__ds/details?path=secret", headers=by_reader).status_code == 403


def test_a_caller_without_access_control(api: httpx.Client) -> None:
    caller = api.get("/v1/stream/__ds/caller").json()
    assert caller == {"name": None, "scopes": None, "administers": True, "sees_settings": True, "expires_at": None}


def test_details_of_a_table(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    admin, _ = add_token(auth, "admin", ["admin:**"], None)
    reader, _ = add_token(auth, "reader", ["read:a/**", "retain:a/prices"], None)
    url = "/v1/table/__stp/details"
    with edge(DURABLE, auth) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as api:
        by_admin, by_reader = ({"authorization": f"Bearer {token}"} for token in (admin, reader))
        kind = {"content-type": "text/sequence; schema=prices; version=1", "stream-retain-messages": "9"}
        for name in ("a/prices", "b"):
            assert api.put(f"/v1/table/{name}", headers={**by_admin, **kind}).status_code == 201
        named = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
        assert api.post("/v1/table/a/prices", headers={**by_admin, **ROWS, **named}, content=b"+\tk\t1\n").is_success
        page = api.get(url, params={"name": "a/prices"}, headers=by_admin).json()
        [listed] = api.get("/v1/table/__stp/tables?prefix=a/", headers=by_admin).json()["tables"]
        assert page.items() >= listed.items()
        assert page["retention"]["messages"] == 9
        assert (page["live_readers"], page["trimmed_bytes"], page["producer_count"]) == (0, 0, 1)
        assert page["producers"][0]["id"] == "p"
        assert "admin" in page["actions"]
        assert "settings" not in page["actions"]
        seen = api.get(url, params={"name": "a/prices"}, headers=by_reader).json()
        assert (seen["actions"], seen["producers"]) == (["read", "retain"], None)
        assert api.get(url, params={"name": "b"}, headers=by_reader).status_code == 403
        missing = api.get(url, params={"name": "none"}, headers=by_admin)
        assert (missing.status_code, missing.json()["detail"]) == (
            404,
            "table 'none' does not exist; create it with PUT",
        )
