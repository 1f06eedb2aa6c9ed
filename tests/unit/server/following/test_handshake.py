"""When a follower registers for Notify, where, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from headwater import limits
from headwater.errors import TargetUnreachableError
from headwater.outbound import Answer, CheckedUrl, OutboundClient, parse_target
from headwater.server.following.handshake import NO_PUBLIC_URL, NOT_ASKED, NOT_OFFERED, REGISTERED, Handshake
from tests import virtual_time

SURL = parse_target("https://shop.example/v1/table/eu/prices?token=secret")
NURL = "https://us.example/v1/table/copy/notify"
NAMED = {"stp-notify": "./prices/notify"}
REMOTE = "https://shop.example/v1/table/eu/prices/notify"


class FakeClient(OutboundClient):
    def __init__(self, *answers: int | Exception) -> None:
        self.development = False
        self.answers = list(answers)  # of the next requests; 204 when there are no more
        self.sent: list[tuple[str, bytes]] = []
        self.free = asyncio.Event()
        self.free.set()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        total_s: float | None = None,
        body_bytes_max: int | None = None,
        user: str = "",
    ) -> Answer:
        assert (method, headers) == ("POST", {"content-type": "application/x-www-form-urlencoded"})
        assert total_s
        assert body_bytes_max
        self.sent.append((url, body))
        await self.free.wait()
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, {}, b"")


def run(
    body: Callable[[Handshake, FakeClient, list[int]], Awaitable[None]],
    *answers: int | Exception,
    nurl: str | None = NURL,
    surl: CheckedUrl = SURL,
) -> None:
    async def main() -> None:
        client, registered = FakeClient(*answers), list[int]()
        handshake = Handshake(client, surl, nurl, lambda: registered.append(1))
        await body(handshake, client, registered)
        await handshake.close()

    virtual_time.run(main())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLLOW_REGISTER_PAUSE_S", 0.05)
    monkeypatch.setattr(limits, "FOLLOW_REGISTER_S", 0.5)


def test_the_own_nurl_is_advertised_at_the_nurl_that_the_remote_server_names() -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        assert handshake.status == NOT_ASKED
        handshake.answered(NAMED)
        await settle()
        assert client.sent == [(REMOTE, b"rows=https://us.example/v1/table/copy/notify")]
        assert (handshake.status, registered) == (REGISTERED, [1])

    run(body)


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("/nurls/7?a=b", "https://shop.example/nurls/7?a=b"),
        ("https://shop.example:443/n", "https://shop.example/n"),
        ("./a:b/notify", "https://shop.example/v1/table/eu/a:b/notify"),
        ("../../../../n", "https://shop.example/n"),
    ],
)
def test_the_remote_nurl_may_be_anywhere_on_its_server(reference: str, url: str) -> None:
    async def body(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        handshake.answered({"stp-notify": reference})
        await settle()
        assert [url for url, _ in client.sent] == [url]

    run(body)


@pytest.mark.parametrize(
    "reference",
    [
        "https://victim.example/notify",
        "//victim.example/notify",
        "https://shop.example:8443/notify",
        "http://shop.example/notify",
        "https://shop.example@victim.example/",
        "https://shop.example\\@victim.example/",
        "javascript:alert(1)",
        "https://[::1/",
        "https://[1.2.3.4]/",
        "/a b",
        "/\x01",
        "#",
        "/n#f",
        "x" * 100_000,
    ],
)
def test_no_other_server_is_called(reference: str) -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        for _ in range(5):
            handshake.answered({"stp-notify": reference})
            await settle()
        if reference not in ("#", "x" * 100_000):  # another path of the server that named it
            assert client.sent == []
            assert handshake.status.startswith("refused: ")
            assert registered == []
        assert all(url.startswith("https://shop.example/v1/table/eu/") for url, _ in client.sent)

    run(body)


def test_it_is_repeated_after_hours_and_after_the_remote_server_was_not_there() -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        for _ in range(20):
            handshake.answered(NAMED)
            await settle()
        assert len(client.sent) == 1
        for _ in range(20):  # a server that comes and goes
            handshake.lost()
            await settle()
            handshake.answered(NAMED)
            await settle()
        assert len(client.sent) == 1
        await asyncio.sleep(0.1)  # nobody needs to answer once more: an answer may be held open for long
        assert len(client.sent) == 2
        handshake.lost()
        await asyncio.sleep(0.1)
        assert len(client.sent) == 2  # not before it is back
        handshake.answered(NAMED)
        await settle()
        assert len(client.sent) == 3
        await asyncio.sleep(0.3)
        assert len(client.sent) == 3
        await asyncio.sleep(0.4)
        assert len(client.sent) == len(registered) == 4

    run(body)


def test_a_server_that_dies_during_the_handshake_is_registered_at_when_it_is_back() -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        client.free.clear()
        handshake.answered(NAMED)
        await settle()
        handshake.lost()
        handshake.answered(NAMED)
        client.free.set()
        await settle()
        assert handshake.status == "failed: the connection was lost"
        await asyncio.sleep(0.1)
        assert (handshake.status, len(client.sent), registered) == (REGISTERED, 2, [1])

    run(body, TargetUnreachableError("the connection was lost", how="lost"))


def test_another_nurl_is_registered_at_but_not_more_often() -> None:
    async def body(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        for number in range(20):
            handshake.answered({"stp-notify": f"/{number}"})
            await settle()
        assert [url for url, _ in client.sent] == ["https://shop.example/0"]
        await asyncio.sleep(0.1)
        assert [url for url, _ in client.sent] == ["https://shop.example/0", "https://shop.example/19"]

    run(body)


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410])
def test_a_refusal_is_told_and_not_repeated_soon(status: int) -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        for _ in range(4):
            handshake.answered(NAMED)
            await settle()
            await asyncio.sleep(0.06)
        assert (len(client.sent), registered) == (1, [])
        assert handshake.status == f"refused: answered {status}"

    run(body, status)


def test_failures_are_repeated_with_growing_waits() -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        begun, times = asyncio.get_running_loop().time(), list[float]()
        handshake.answered(NAMED)
        seen = {handshake.status}
        while handshake.status != REGISTERED:
            await asyncio.sleep(0.001)
            seen.add(handshake.status)
            if len(times) < len(client.sent):
                times.append(asyncio.get_running_loop().time() - begun)
        assert seen == {NOT_ASKED, "failed: answered 503", "failed: no answer in time", REGISTERED}
        assert len(client.sent) == 3
        assert times[1] >= 0.05
        assert times[2] - times[1] >= 0.09
        assert registered == [1]

    run(body, 503, TargetUnreachableError("no answer in time", how="timeout"))


def test_an_unexpected_error_stays_within() -> None:
    async def body(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        handshake.answered(NAMED)
        await settle()
        assert handshake.status == "failed: a bug"

    run(body, RuntimeError("a bug"))


def test_one_at_a_time_and_none_after_the_end() -> None:
    async def body(handshake: Handshake, client: FakeClient, registered: list[int]) -> None:
        client.free.clear()
        for _ in range(3):
            handshake.answered(NAMED)
            await settle()
            handshake.lost()
            await settle()
        assert len(client.sent) == 1
        await handshake.close()
        assert registered == []

    run(body)


def test_without_a_public_url_or_a_remote_nurl_there_is_none() -> None:
    async def unknown(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        handshake.answered(NAMED)
        await settle()
        assert (handshake.status, client.sent) == (NO_PUBLIC_URL, [])

    async def not_offered(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        handshake.answered({})
        await settle()
        assert (handshake.status, client.sent) == (NOT_OFFERED, [])
        handshake.answered(NAMED)
        await settle()
        assert handshake.status == REGISTERED

    async def too_long(handshake: Handshake, client: FakeClient, _: list[int]) -> None:
        handshake.answered(NAMED)
        await settle()
        assert handshake.status.startswith("refused: ")
        assert client.sent == []

    run(unknown, nurl=None)
    run(not_offered)
    run(too_long, nurl=f"https://us.example/{'x' * 3_000}")
