"""`headwater subscription` and `headwater work`, as scripts use them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.servers import Server

from headwater.client import Client
from tests.commands import run_command
from tests.waiting import wait_until


class Shop:
    """A subscription of its own for each test, made by the command."""

    def __init__(self, server: Server, client: Client) -> None:
        self.url = f"http://{server.host}:{server.port}"
        self.client = client
        self.name = uuid.uuid4().hex
        self.wakes = f"wakes-{self.name}"
        client.stream(self.wakes).create()
        self.run("subscription", "create", self.name, "--pattern", f"{self.name}/*", "--wake-stream", self.wakes)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command and return its output, standard error at the end."""
        ran = run_command(*arguments, "--url", self.url)
        assert ran.returncode == code, ran
        return ran.stdout.decode() + ran.stderr.decode()

    def append(self, *messages: object, stream: str = "a", content_type: str = "application/json") -> str:
        handle = self.client.stream(f"{self.name}/{stream}")
        handle.create(content_type=content_type)
        return handle.append_many(messages).offset


@pytest.fixture
def shop(server: Server) -> Iterator[Shop]:
    with Client(f"http://{server.host}:{server.port}") as client:
        yield Shop(server, client)


def test_create_show_list_and_delete(shop: Shop) -> None:
    made = (
        "subscription",
        "create",
        f"{shop.name}-2",
        "--stream",
        "x/1",
        "--stream",
        "x/2",
        "--wake-stream",
        shop.wakes,
    )
    more = ("--lease", "2.5", "--description", "a note")
    assert f"created {shop.url}/v1/stream/__ds/subscriptions/{shop.name}-2" in shop.run(*made, *more)
    assert json.loads(shop.run(*made, *more, "--json"))["created"] is False
    assert "different configuration" in shop.run(*made, code=4)
    shown = shop.run("subscription", "show", f"{shop.name}-2")
    for text in ("pull-wake", "2500", "a note", "x/1", "x/2", "explicit"):
        assert text in shown
    record = json.loads(shop.run("subscription", "show", f"{shop.name}-2", "--json"))
    assert [link["path"] for link in record["streams"]] == ["x/1", "x/2"]
    listed = [json.loads(line) for line in shop.run("subscription", "list", shop.name, "--json").splitlines()]
    assert [status["id"] for status in listed] == [shop.name, f"{shop.name}-2"]
    assert f"{shop.name}/*" in shop.run("subscription", "list", shop.name)
    assert "deleted" in shop.run("subscription", "delete", f"{shop.name}-2")
    assert "headwater subscription list" in shop.run("subscription", "delete", f"{shop.name}-2", code=3)
    assert "headwater subscription list" in shop.run("subscription", "show", f"{shop.name}-2", code=3)


def test_a_webhook(shop: Shop) -> None:
    url = "http://127.0.0.1:64999/hook"
    shop.run("subscription", "create", f"{shop.name}-3", "--pattern", "never/*", "--webhook", url)
    shown = shop.run("subscription", "show", f"{shop.name}-3")
    assert url in shown
    assert "jwks.json" in shown
    refused = shop.run("subscription", "create", "x", "--pattern", "never/*", "--webhook", "http://10.0.0.1/", code=1)
    assert "Webhook URL rejected" in refused
    assert "has a webhook" in shop.run("work", f"{shop.name}-3", "--exec", "cat", code=2)
    shop.run("subscription", "delete", f"{shop.name}-3")


def test_a_wake_stream_that_does_not_exist_is_named(shop: Shop) -> None:
    arguments = ("subscription", "create", f"{shop.name}-4", "--pattern", "x/*", "--wake-stream", "no/such stream")
    assert "create it with: headwater create 'no/such stream'" in shop.run(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["subscription", "create", "x", "--pattern", "a"], "give either --wake-stream or --webhook"),
        (["subscription", "create", "x", "--wake-stream", "w"], "give a pattern"),
        (["work", "--exec", "cat"], "give the id of a subscription, or --wake-stream"),
        (["work", "x", "--wake-stream", "w", "--exec", "cat"], "give the id of a subscription, or --wake-stream"),
        (["work", "--wake-stream", "w", "--exec", "cat", "--once"], "--once needs the id"),
        (["work", "x"], "--exec"),
        (["work", "x", "--exec", " "], "give a command"),
        (
            ["subscription", "create", "x", "--pattern", "a", "--wake-stream", "w", "--lease", "inf"],
            "lease_s is a number of seconds, got inf",
        ),
    ],
)
def test_invalid_options(shop: Shop, arguments: list[str], message: str) -> None:
    assert message in shop.run(*arguments, code=2)


def test_a_command_gets_the_events(shop: Shop) -> None:
    assert "nothing is pending" in shop.run("work", shop.name, "--once", "--exec", "cat")
    tail = shop.append({"n": 1}, {"n": 2.50})
    shop.append("hé\n", stream="text", content_type="text/plain")
    shop.append(b"\xff", stream="zbytes", content_type="application/octet-stream")
    environment = "echo $HEADWATER_SUBSCRIPTION $HEADWATER_GENERATION $HEADWATER_WORKER"
    *lines, names = shop.run(
        "work", shop.name, "--once", "--worker", "me", "--exec", f"cat; {environment}"
    ).splitlines()
    assert names.split()[0] == shop.name
    assert names.split()[2] == "me"
    records = [json.loads(line) for line in lines]
    assert records[0] == {
        "subscription": shop.name,
        "stream": f"{shop.name}/a",
        "offset": tail,
        "messages": [{"n": 1}, {"n": 2.5}],
    }
    assert [record.get("text") for record in records[1:]] == ["hé\n", None]
    assert records[2]["base64"] == "/w=="
    assert "nothing is pending" in shop.run("work", shop.name, "--once", "--exec", "cat")


def test_a_command_that_fails_acks_nothing(shop: Shop) -> None:
    shop.append({"n": 1})
    assert "the command failed: exit code 7" in shop.run("work", shop.name, "--once", "--exec", "exit 7", code=1)
    assert "signal 9" in shop.run("work", shop.name, "--once", "--exec", "kill -9 $$", code=1)
    assert '"n":1' in shop.run("work", shop.name, "--once", "--exec", "cat")


def test_a_command_need_not_read_its_input(shop: Shop) -> None:
    shop.append(*[{"text": "x" * 1000}] * 500)
    shop.run("work", shop.name, "--once", "--exec", "exit 0")
    assert "nothing is pending" in shop.run("work", shop.name, "--once", "--exec", "cat")


def test_a_worker_goes_on_until_sigterm(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    script = f"cat >> {file}; if [ -e {tmp_path}/slow ]; then sleep 0.5; fi; echo end >> {file}"
    command = [
        sys.executable,
        "-m",
        "headwater",
        "work",
        "--wake-stream",
        shop.wakes,
        "--exec",
        script,
        "--url",
        shop.url,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for number in range(2):
            shop.append({"n": number})
            wait_until(lambda: file.exists() and file.read_text().count("end") > number)  # noqa: B023
        (tmp_path / "slow").touch()
        shop.append({"n": 2})
        wait_until(lambda: '"n":2' in file.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert file.read_text().count("end") == 3
    assert "nothing is pending" in shop.run("work", shop.name, "--once", "--exec", "cat")


def test_a_command_is_ended_if_the_lease_is_lost(shop: Shop, tmp_path: Path) -> None:
    file, name = tmp_path / "state", f"{shop.name}-short"
    shop.run("subscription", "create", name, "--stream", f"{name}/a", "--wake-stream", shop.wakes, "--lease", "1")
    shop.client.stream(f"{name}/a").create(messages=[{"n": 1}])
    script = f"trap 'echo ended > {file}; exit 1' TERM; echo begun > {file}; sleep 1000 & wait"
    command = [sys.executable, "-m", "headwater", "work", name, "--exec", script, "--url", shop.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: file.exists() and file.read_text() == "begun\n")
        shop.client.subscription(name).delete()
        wait_until(lambda: file.read_text() == "ended\n")
        assert process.stderr is not None
        assert "the lease is lost" in process.stderr.read()  # also the sleep has ended: it has the same standard error
    assert process.returncode == 3  # the subscription does not exist any more


def test_top_shows_lag_and_leases(shop: Shop) -> None:
    shop.append(*[{"text": "x" * 100}] * 500, stream="x")
    claim = shop.client.subscription(shop.name).claim("worker-1")
    subscriptions = json.loads(shop.run("top", "--once", "--json", "--limit", "100"))["subscriptions"]
    shown = next(one for one in subscriptions if one["name"] == shop.name)
    assert (shown["pending"], shown["holder"], shown["state"]) == (1, "worker-1", "active")
    assert 0 < shown["lease_ms"] <= 30_000
    assert shown["lag_bytes"] > 50_000
    assert "SUBSCRIPTION" in shop.run("top", "--once")
    claim.release()
