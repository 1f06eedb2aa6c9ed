"""The settings of a server over HTTP: their values and sources, who may see them, and what is not in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from headwater.limits import Limits
from headwater.server.auth.editing import add_token
from headwater.server.settings import OPTIONS
from tests.edges import DURABLE, EDGES, MOUNTED, edge, root_of

URL = "/v1/stream/__ds/settings"


@pytest.fixture(scope="module", params=EDGES)
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with edge(request.param) as server:
        root = root_of(request.param, server).removesuffix("/v1/stream")
        answer = httpx.get(f"{root}{URL}", timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        yield {"edge": request.param, **answer.json()}


def test_every_option_and_limit_has_its_value_and_meaning(settings: dict[str, Any]) -> None:
    limits = {one["name"]: one for one in settings["limits"]}
    assert list(limits) == list(Limits.__struct_fields__)
    assert limits["long_poll_s"]["value"] == 5
    assert limits["long_poll_s"]["source"] != "default"
    assert limits["body_bytes_max"]["source"] == "default"
    assert all(one["about"] for one in (*settings["limits"], *settings["options"]))
    options = {one["name"]: one for one in settings["options"]}
    assert options["console"]["value"] is True
    if settings["edge"] == DURABLE:
        assert list(options) == [name for name in OPTIONS if name != "limits"]
        assert limits["long_poll_s"]["source"] == "--limit"
        assert options["data_dir"]["source"] == "--data-dir"
        assert (options["host"]["value"], options["host"]["source"]) == ("127.0.0.1", "default")


@pytest.mark.slow
def test_an_application_has_other_names_and_sources() -> None:
    with edge(MOUNTED) as server:
        shown = httpx.get(f"http://127.0.0.1:{server.port}/streams{URL}").json()
    assert "data_dir" not in {one["name"] for one in shown["options"]}
    assert {one["source"] for one in shown["options"]} <= {"default", "application"}


def test_what_is_secret_is_not_shown(tmp_path: Path) -> None:
    hidden = "https://tables.example/v1/table/prices?token=hunter3"
    options = ("--memory", "--follow", f"prices={hidden}", "--otel-endpoint", "http://u:hunter4@127.0.0.1:9")
    with headwater(*options) as server:
        answer = httpx.get(f"http://127.0.0.1:{server.port}{URL}")
    assert "hunter" not in answer.text
    shown = {one["name"]: one for one in answer.json()["options"]}
    assert shown["follow"]["value"] == ["prices=https://tables.example/v1/table/prices?…"]
    assert shown["data_dir"]["value"] is None
    assert shown["follow"]["source"] == "--follow"


def test_what_the_server_chose_itself_says_so() -> None:
    with headwater("--memory", "--limit", "long_poll_s=7") as server:
        shown = httpx.get(f"http://127.0.0.1:{server.port}{URL}").json()
    limits = {one["name"]: one for one in shown["limits"]}
    memory = limits["memory_bytes_max"]  # three quarters of that of the machine
    assert memory["value"] > 0
    assert memory["source"] == "chosen at the start"
    assert (limits["long_poll_s"]["value"], limits["long_poll_s"]["source"]) == (7, "--limit")


def test_the_settings_need_a_scope_of_their_own(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    tokens = {
        name: add_token(auth, name, [scope], None)[0]
        for name, scope in (("admin", "admin:**"), ("watcher", "settings:**"), ("part", "admin:a/**"))
    }
    with edge(DURABLE, auth) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as api:

        def get(url: str, token: str) -> httpx.Response:
            return api.get(url, headers={"authorization": f"Bearer {tokens[token]}"})

        assert get(URL, "admin").status_code == get(URL, "watcher").status_code == 200
        refused = get(URL, "part")
        assert refused.status_code == 403
        assert refused.json()["detail"] == "'part' lacks the scope settings:**"
        assert api.get(URL).status_code == 401
        assert get("/v1/stream/__ds/top", "watcher").status_code == 403
        assert get("/metrics", "watcher").status_code == 403
        seen = {name: get("/v1/stream/__ds/caller", name).json()["sees_settings"] for name in tokens}
        assert seen == {"admin": True, "watcher": True, "part": False}
