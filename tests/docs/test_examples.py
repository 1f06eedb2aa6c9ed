"""The examples run and say what their pages say."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.client import Client
from tests.edges import free_port, memory_server
from tests.example_commands import EXAMPLES, ROOT, commands, environment, started
from tests.waiting import PROGRAM_LIMIT_S, wait_until

LATE_WORKER = "Python worker failed to connect back"  # within Spark's ten seconds; the run can be tried again


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


def test_every_example_has_a_page_and_is_listed() -> None:
    listed = re.findall(r"\]\(([a-z-]+)/README\.md\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    for page in (EXAMPLES / "README.md", *EXAMPLES.glob("*/README.md")):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_a_provider_and_a_hub() -> None:
    assert "python examples/hub/exchange.py\n" in (ROOT / "examples" / "hub" / "README.md").read_text()
    ran = subprocess.run(
        [sys.executable, "-W", "error", "examples/hub/exchange.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    said = re.sub(r"127\.0\.0\.1:\d+", "HOST", ran.stdout).splitlines()
    assert said == [
        "provider  serves http://HOST/v1/table/manifest",
        "hub       serves http://HOST/v1/table/directory",
        "provider  advertises its callback http://HOST/v1/table/directory/notify",
        "provider  introduces itself: surl=http://HOST/v1/table/manifest",
        "hub       advertises its callback http://HOST/v1/table/manifests/acme/notify",
        "hub       lists acme/fhir_read at https://acme.example/fhir",
        "hub       lists acme/direct_message at https://acme.example/dm",
        "provider  sees acme/fhir_read, acme/direct_message in its copy of the directory",
        "provider  moves fhir_read and withdraws direct_message",
        "hub       lists acme/fhir_read at https://acme.example/fhir/v2",
        "hub       drops acme/direct_message",
        "provider  sees acme/fhir_read in its copy of the directory",
        "hub       lists an endpoint of another provider",
        "provider  sees acme/fhir_read, other/fhir_read in its copy of the directory",
        "both      have the other's rows, with the same SeqNos and timestamps",
    ]


@pytest.mark.slow
def test_a_pool_of_workers() -> None:
    serve, command = commands("worker-pool")
    assert serve == "headwater serve --memory"
    with memory_server() as server:
        ran = subprocess.run(
            [*command.replace("--seconds 20 --kill-every 2", "--seconds 6 --kill-every 1").split(), "--streams", "20"],
            cwd=ROOT,
            env=environment(HEADWATER_URL=f"http://{server.host}:{server.port}"),
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch(
        r"all [1-9][\d,]* events were processed by \d+ workers, \d+ of them again", ran.stdout.splitlines()[-1]
    )


@pytest.mark.slow
def test_webhooks_in_fastapi() -> None:
    port = free_port()
    _, app, create, append, look, forge = commands("fastapi-webhook")
    with memory_server() as server:
        url = f"http://{server.host}:{server.port}"
        variables = {"HEADWATER_URL": url, "APP_URL": f"http://127.0.0.1:{port}"}
        receiver = app.removeprefix("APP_URL=http://127.0.0.1:8000 ").replace("8000", str(port))
        with started(receiver, says_ready=False, **variables):
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/pieces"))
            for command in (create, append):
                subprocess.run(shlex.split(command), env=environment(**variables), check=True, capture_output=True)
            wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/pieces").json() == {"tea": 2, "cup": 1})
            forged = subprocess.run(
                shlex.split(forge.replace("8000", str(port))), check=True, capture_output=True, text=True
            )
            assert "no Webhook-Signature header" in forged.stdout
        with Client(url) as client:  # while the app is away
            client.stream("shop/orders/1").append({"sku": "tea", "pieces": 40})
            with started(receiver, says_ready=False, **variables):
                wait_until(lambda: answers(f"http://127.0.0.1:{port}/pieces"))
                wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/pieces").json() == {"tea": 40})
    assert look.startswith("curl")


@pytest.mark.slow
def test_a_price_list_for_another_company() -> None:
    [command] = commands("price-list")
    ran = subprocess.run(
        command.split(),
        cwd=ROOT,
        env=environment(WHOLESALER_PORT=str(free_port()), SHOP_PORT=str(free_port())),
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = [line for line in ran.stdout.splitlines() if line and not line.startswith("== ")]
    assert said[1:] == [
        "2 added, 0 changed, 0 deleted, 0 unchanged",
        '1\t{"name":"tea","eur":"2.40"}',
        '2\t{"name":"coffee","eur":"3.10"}',
        "1 added, 1 changed, 1 deleted, 0 unchanged",
        '1\t{"name":"tea","eur":"2.50"}',
        '3\t{"name":"milk","eur":"0.90"}',
        '"title":"Not authenticated',
        '"detail":"this needs a token with the scope read:pricelist',
        "revoked token 'shop'",
        '"state":"retrying',
        '"last_error":"Response of the target refused: answered 401 ',
        '1\t{"name":"tea","eur":"2.50"}',
        '3\t{"name":"milk","eur":"0.90"}',
    ]
    assert "'shop' lacks the scope append:pricelist" in ran.stderr


@contextlib.contextmanager
def theatre(directory: Path) -> Iterator[tuple[str, str, str]]:
    """A server and two apps, started as the page says; the URLs of all three."""
    ports = [free_port() for _ in range(3)]
    server, *apps = (f"http://127.0.0.1:{port}" for port in ports)
    serve, *uvicorns = commands("fastapi-seats")[:3]
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(serve, "--port", str(ports[0]), "--data-dir", str(directory)))
        for uvicorn, port, app in zip(uvicorns, ports[1:], apps, strict=True):
            command = re.sub(r"--port \d+", f"--port {port}", uvicorn)
            stack.enter_context(started(command, says_ready=False, HEADWATER_URL=server))
            wait_until(lambda app=app: answers(f"{app}/seats"))  # type: ignore[misc]
        yield server, apps[0], apps[1]


@pytest.mark.slow
def test_seats_are_booked_once_by_two_apps(tmp_path: Path) -> None:
    with theatre(tmp_path / "data") as (server, *apps):

        def book(number: int) -> tuple[int, str]:
            """20 guests want two seats, at one app or the other."""
            seat, guest = f"C{number % 2 + 1}", f"guest {number}"
            answer = httpx.put(f"{apps[number // 2 % 2]}/seats/{seat}", json={"guest": guest}, timeout=30)
            return answer.status_code, guest

        with ThreadPoolExecutor(20) as pool:
            booked = list(pool.map(book, range(20)))
        assert Counter(status for status, _ in booked) == {201: 2, 409: 18}
        lucky = {guest for status, guest in booked if status == 201}
        with Client(server) as client:
            events = client.stream("theatre/seats").read().all()
        assert {event["value"]["guest"] for event in events} == lucky
        for app in apps:
            wait_until(lambda app=app: {*httpx.get(f"{app}/seats").json().values()} == {None, *lucky})  # type: ignore[misc]

        assert said_by_the_page(server, *apps) == [
            {"id": "A1", "guest": "Ann"},
            "Ann",
            {"A1": "Ann"},
            {"detail": "this seat is taken"},
            ["insert"] * 3 + ["delete"],
        ]


def said_by_the_page(server: str, first: str, second: str) -> list[Any]:
    """What the commands of the second block answer."""
    put, listing, of_guest, again, delete, read = commands("fastapi-seats")[3:]

    def run(command: str) -> str:
        command = command.replace("http://127.0.0.1:8001", first).replace("http://127.0.0.1:8002", second)
        return subprocess.run(
            ["bash", "-c", command],
            env=environment(HEADWATER_URL=server),
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=True,
        ).stdout

    booked = json.loads(run(put))
    listed = json.loads(run(listing))["A1"]  # at the same app: at once
    wait_until(lambda: json.loads(run(of_guest)) == {"A1": "Ann"})
    taken = json.loads(run(again))
    assert run(delete) == ""
    operations = [json.loads(line)["headers"]["operation"] for line in run(read).splitlines()]
    return [booked, listed, {"A1": "Ann"}, taken, operations]


@pytest.mark.slow
def test_change_events_become_delta_tables(tmp_path: Path) -> None:
    serve, *steps = commands("delta-table")
    port = free_port()
    variables = environment(HEADWATER_URL=f"http://127.0.0.1:{port}")

    def run(command: str) -> str:
        command = command.replace("examples/", f"{ROOT}/examples/")
        while True:
            ran = subprocess.run(
                command.split(),
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                timeout=PROGRAM_LIMIT_S,
                check=False,
            )
            if LATE_WORKER not in ran.stderr:
                break
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    page = (ROOT / "examples" / "delta-table" / "README.md").read_text()
    expected = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with started(serve, "--port", str(port), "--data-dir", str(tmp_path / "data")):
        assert [run(step) for step in steps][-1:] == expected
        again = [run(step) for step in steps][-1]
    assert again == expected[0] + expected[0].splitlines(keepends=True)[-1]  # one more in the quarantine
