"""The audit log: who did what, over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from tests.command_line import invoke
from tests.waiting import wait_until

TEXT = {"content-type": "text/plain"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def token(auth: Path, *arguments: str) -> str:
    ran = invoke(["token", *arguments[:1], str(auth), *arguments[1:]])
    assert ran.exit_code == 0, ran.output
    return ran.stdout.strip()


@pytest.mark.slow
def test_who_did_what(tmp_path: Path) -> None:
    auth, audit = tmp_path / "auth.toml", tmp_path / "audit.log"
    headers = {"authorization": f"Bearer {token(auth, 'add', '--name', 'ops', '--scope', 'admin:**')}"}
    with headwater("--memory", "--auth", str(auth), "--audit-log", str(audit)) as server:
        with httpx.Client(base_url=server.url, headers=headers) as client:
            client.put("/a", headers={**TEXT, "x-request-id": "mine"})
            client.post("/a", headers=TEXT, content=b"x")
            client.get("/a")
            client.post("/a", headers={**TEXT, "stream-closed": "true"})
            client.post("/__ds/sign", params={"url": "/v1/stream/a"})
            client.patch("/a", headers={"stream-retain-bytes": "5", "stream-retain-seconds": ""})
            client.post("/__ds/trim", params={"path": "a", "before": "now"})
            client.delete("/a")
            client.delete("/a")
            client.delete("/a", headers={"authorization": "Bearer hw_wrong"})
            client.put("/a", headers={**TEXT, "authorization": "Bearer hw_wrong"}, content=b"x" * 100_000)
        with httpx.Client(base_url=server.url.replace("/stream", "/table"), headers=headers) as client:
            client.put("/t")
            client.post("/t/notify", data={"rows": "https://nurl.invalid/"})
            client.delete("/t/notify", params={"nurl": "https://nurl.invalid/"})
            client.post("/t/trim", params={"before": "7"})
        wait_until(lambda: len(lines(audit)) >= 13)
        entries = lines(audit)
        assert [(line["action"], line["identity"], line["outcome"], line["status"]) for line in entries] == [
            ("create", "ops", "ok", 201),
            ("close", "ops", "ok", 204),
            ("sign", "ops", "ok", 200),
            ("retain", "ops", "ok", 204),
            ("trim", "ops", "ok", 204),
            ("delete", "ops", "ok", 204),
            ("delete", "ops", "refused", 404),
            ("delete", "", "refused", 401),
            ("create", "", "refused", 401),
            ("create", "ops", "ok", 201),
            ("notify", "ops", "ok", 204),
            ("withdraw", "ops", "ok", 204),
            ("trim", "ops", "refused", 400),
        ]
        assert {line["action"]: line["detail"] for line in entries if line["detail"]} == {
            "retain": "stream-retain-seconds: , stream-retain-bytes: 5",
            "trim": "before=7",
        }
        assert entries[4]["detail"] == "path=a&before=now"
        assert {line["address"] for line in entries} == {"127.0.0.1"}
        assert (entries[0]["path"], entries[0]["request_id"]) == ("/v1/stream/a", "mine")
        assert all(line["time"].endswith("Z") and line["request_id"] for line in entries)
        token(auth, "add", "--name", "guest", "--scope", "read:**", "--audit-log", str(audit))
        wait_until(lambda: [line["action"] for line in lines(audit)][-1] == "reload")
        token(auth, "revoke", "guest", "--audit-log", str(audit))
        wait_until(lambda: len(lines(audit)) >= 19)
        actions = [(line["action"], line["path"], line["identity"] == "headwater") for line in lines(audit)[13:]]
        assert actions == [
            ("grant", "guest", False),
            ("grant", "guest", True),
            ("reload", "auth-file", True),
            ("revoke", "guest", False),
            ("revoke", "guest", True),
            ("reload", "auth-file", True),
        ]
        auth.write_text("nonsense = 1")
        wait_until(lambda: lines(audit)[-1]["outcome"] == "failed")
        assert lines(audit)[-1]["action"] == "reload"
    assert "hw_" not in audit.read_text()


def test_a_change_that_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    token(auth, "add", "--name", "guest", "--scope", "read:**")
    arguments = ["token", "revoke", str(auth), "guest", "--audit-log", str(tmp_path / "none" / "log")]
    ran = invoke(arguments)
    assert ran.exit_code == 1
    assert "the change was made, but the audit log" in ran.output
