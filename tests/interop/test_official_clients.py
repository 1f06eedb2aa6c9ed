"""The official clients against our server: create, append, read, tail by long-poll and by server-sent events."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import uuid

import durable_streams
import pytest
from bench.servers import NODE_DIR, Server

from tests.waiting import PROGRAM_LIMIT_S


@pytest.mark.slow
def test_the_typescript_client(server: Server) -> None:
    node = shutil.which("node")
    assert node is not None, "Node is needed: run this through `make test`"
    root = f"{server.url}/{uuid.uuid4().hex}"
    ran = subprocess.run(
        [node, "client.mjs", root], cwd=NODE_DIR, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    seen = {line["step"]: line["seen"] for line in map(json.loads, ran.stdout.splitlines())}
    assert seen.pop("head")
    assert seen == {
        "catch-up": [{"n": 1}, {"n": 2}],
        "long-poll": [0, 1, 2, 3, 4],
        "sse": [0, 1, 2, 3, 4],
        "producer": list(range(100)),
        "deleted": 404,
    }


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}/py/{uuid.uuid4().hex}"


def test_the_python_client(url: str) -> None:
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        for number in range(3):
            handle.append({"n": number})
        with durable_streams.stream(url, offset="-1", live=False) as response:
            assert list(response.iter_json()) == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert handle.head().offset == response.offset
        handle.delete()
        with pytest.raises(durable_streams.StreamNotFoundError):
            handle.head()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_python_client_tails(url: str, live: durable_streams.LiveMode) -> None:
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        handle.append({"n": 0})
        seen = []
        with durable_streams.stream(url, offset="-1", live=live) as response:
            for item in response.iter_json():
                seen.append(item["n"])
                if len(seen) == 5:
                    break
                handle.append({"n": len(seen)})  # when all before it have arrived
        assert seen == [0, 1, 2, 3, 4]


def test_the_asynchronous_python_client(url: str) -> None:
    async def main() -> list[object]:
        async with await durable_streams.AsyncDurableStream.create(url, content_type="application/json") as handle:
            await asyncio.gather(*[handle.append({"n": number}) for number in range(20)])
        async with durable_streams.astream(url, offset="-1", live=False) as response:
            return [item["n"] async for item in response.iter_json()]

    assert sorted(asyncio.run(main())) == list(range(20))  # type: ignore[type-var]
