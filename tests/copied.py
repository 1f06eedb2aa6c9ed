"""A history with everything that a store keeps, for tests of copies."""

from __future__ import annotations

import json

import httpx

from headwater.client import Client
from tests.command_line import invoke
from tests.trimming import keep_last
from tests.waiting import LIMIT_S, wait_until

TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
TABLE = {"content-type": "text/sequence"}


def fill(root: str) -> None:
    """Streams of every kind that a store knows."""
    with httpx.Client(base_url=root, timeout=LIMIT_S) as http:
        for number in range(30):
            assert http.put(f"/v1/stream/many/{number}", headers=TEXT, content=f"{number};").is_success
        big = "/v1/stream/big"
        assert http.put(big, headers=TEXT | {"stream-ttl": "3600"}).is_success
        for number in range(40):
            producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(number)}
            assert http.post(big, headers=TEXT | producer, content=f"{number:05d}" * 1000).is_success
        middle = http.get(big, params={"offset": "-1"}).headers["stream-next-offset"]
        assert http.post(big, headers=TEXT, content="after the fork").is_success
        fork = {"stream-forked-from": big, "stream-fork-offset": middle}
        assert http.put("/v1/stream/fork", headers=fork).is_success
        assert http.post("/v1/stream/fork", headers=TEXT, content="own").is_success
        assert http.put("/v1/stream/parent", headers=TEXT, content="inherited").is_success
        assert http.put("/v1/stream/child", headers={"stream-forked-from": "/v1/stream/parent"}).is_success
        assert http.delete("/v1/stream/parent").is_success  # its bytes stay for the child
        assert http.put("/v1/stream/closed", headers=TEXT, content="x").is_success
        assert http.post("/v1/stream/closed", headers={"stream-closed": "true"}).is_success
        assert http.put("/v1/stream/trimmed", headers=TEXT | {"stream-retain-messages": "1000"}).is_success
        for number in range(20):
            assert http.post("/v1/stream/trimmed", headers=TEXT, content=f"{number:03d}").is_success
        assert http.put("/v1/stream/state", headers=JSON | {"stream-compact": "true"}).is_success
        for number in range(50):
            change = {"type": "t", "key": str(number % 3), "value": {"n": number}, "headers": {"operation": "upsert"}}
            assert http.post("/v1/stream/state", headers=JSON, content=json.dumps(change)).is_success
        assert http.put("/v1/table/rows", headers=TABLE).is_success
        for number in range(10):
            assert http.post("/v1/table/rows", headers=TABLE, content=f"+\tk{number}\tr\n").is_success
        view = {"stp-view-of": "/v1/stream/state", "stp-view-type": "t"}
        assert http.put("/v1/table/view", headers=view).status_code == 201
        wait_until(lambda: '{"n":49}' in http.get("/v1/table/view", params={"timeout": "0"}).text, "the view is there")
        subscription = {"type": "pull-wake", "pattern": "many/*", "wake_stream": "/v1/stream/wakes"}
        assert http.put("/v1/stream/wakes", headers=JSON).is_success
        answer = http.put("/v1/stream/__ds/subscriptions/s", json=subscription)
        assert answer.is_success, answer.text
    with Client(root) as client:
        keep_last(client.stream("trimmed"), 3)
    compacted = invoke(["compact", "state", "--url", root])
    assert compacted.exit_code == 0, compacted.output


def seen(root: str) -> dict[str, object]:
    """What a reader gets of everything."""
    answers: dict[str, object] = {}
    with httpx.Client(base_url=root, timeout=LIMIT_S) as http:
        streams = http.get("/v1/stream/__ds/streams", params={"limit": "1000"}).json()
        answers["list"] = streams
        for stream in streams["streams"]:
            path = f"/v1/stream/{stream['path'].strip('/').removeprefix('v1/stream/')}"
            read = http.get(path, params={"offset": "-1"})
            names = ("stream-next-offset", "etag", "stream-closed", "stream-first-offset")
            answers[path] = (read.status_code, read.text, {name: read.headers.get(name) for name in names})
            answers[f"head {path}"] = sorted(
                (name, value) for name, value in http.head(path).headers.items() if name.startswith("stream-")
            )
        for table in ("rows", "view"):
            answers[table] = http.get(f"/v1/table/{table}", params={"timeout": "0"}).text
        answers["subscription"] = http.get("/v1/stream/__ds/subscriptions/s").json()
    return answers
