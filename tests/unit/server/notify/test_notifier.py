"""The notifier over a real engine, with a clock set by hand and an outbound client that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import (
    InvalidNotifyError,
    OverloadedError,
    RedirectRefusedError,
    StreamFullError,
    StreamNotFoundError,
    TargetRefusedError,
    TargetUnreachableError,
    UnknownRouteError,
)
from headwater.limits import NOTIFY_POSTS_PER_HOST_MAX, Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.outbound import Answer, CheckedUrl, parse_target
from headwater.server.following import Followers, FollowPolicy
from headwater.server.http import Request, Response
from headwater.server.notify import Notifier
from headwater.server.notify.nurl import NurlRecord, decode
from headwater.server.service import Service
from headwater.server.tables import nurls
from tests.unit.engine.test_engine import ManualClock, with_engine
from tests.waiting import wait_for_async, wait_until_async

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"
PATH = "\x01prices"
URL = "https://peer.example/nurl"
BASE = "https://us.example"
LIMITS = Limits(notify_retry_s=0.02, notify_posts_max=10)


class FakeOutbound:
    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)  # of the next requests; 204 when there are no more
        self.sent: list[tuple[str, bytes]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.now = self.most = 0
        self.closed = False

    def parse(self, url: str) -> CheckedUrl:
        return parse_target(url)

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, total_s: float, body_bytes_max: int
    ) -> Answer:
        assert (method, dict(headers)) == ("POST", {"content-type": "application/x-www-form-urlencoded"})
        self.sent.append((url, body))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.free.wait()
        finally:
            self.now -= 1
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, {}, b"")

    async def aclose(self) -> None:
        self.closed = True


async def create(engine: Engine, path: str = PATH, **more: object) -> None:
    await engine.execute(
        Create(path=path, now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS, **more)  # type: ignore[arg-type]
    )


async def append(engine: Engine, path: str = PATH) -> None:
    await engine.execute(Append(path, engine.now_ms(), b"+\tk\tr", TYPE))


async def nurl_rows(engine: Engine) -> list[str]:
    read = await engine.read(Read(f"{PATH}/notify", bytes_max=1 << 20))
    return [line.split("\t", 2)[2] for line in read.data.decode().splitlines()]


def run(
    body: Callable[[Engine, Notifier, FakeOutbound, ManualClock], Awaitable[None]],
    *answers: int | Exception,
    limits: Limits = LIMITS,
    engine_limits: Limits | None = None,
    advancing: bool = False,
) -> None:
    """`advancing` lets the time pass: otherwise it stands still."""
    clock = ManualClock()

    async def main(engine: Engine) -> None:
        outbound = FakeOutbound(*answers)
        notifier = Notifier(engine, limits, outbound, entropy=lambda: 1.0)
        if advancing:
            notifier.now_ms = lambda: int(asyncio.get_running_loop().time() * 1000)
        await notifier.start()
        await create(engine)
        await body(engine, notifier, outbound, clock)
        await notifier.stop()

    with_engine(main, clock=clock, limits=engine_limits)


def test_one_post_at_a_time_and_one_more_for_all_that_came_meanwhile() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        outbound.free.clear()
        for _ in range(10):
            await append(engine)
        await asyncio.sleep(0.01)
        assert outbound.sent == [(URL, b"surl=https://us.example/v1/table/prices")]
        outbound.free.set()
        await wait_until_async(lambda: len(outbound.sent) == 2)
        await asyncio.sleep(0.02)
        assert (len(outbound.sent), outbound.most) == (2, 1)

    run(body)


def test_posts_at_once_are_bounded_in_all_and_for_each_host() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        slow = [("rows", f"https://slow.example/{n}") for n in range(20)]
        other = [("rows", f"https://{n}.example/") for n in range(20)]
        await notifier.advertise(PATH, slow, BASE)
        await notifier.advertise(PATH, other, BASE)
        outbound.free.clear()
        await append(engine)
        await asyncio.sleep(0.05)
        assert outbound.most == LIMITS.notify_posts_max
        assert sum("slow" in url for url, _ in outbound.sent) == NOTIFY_POSTS_PER_HOST_MAX
        outbound.free.set()
        await wait_until_async(lambda: len(outbound.sent) == 40)
        assert outbound.most == LIMITS.notify_posts_max

    run(body)


async def recorded(engine: Engine, key: str, failures: int) -> NurlRecord:
    """The NURL of a document once it has so many failures in a row."""

    async def nurl() -> NurlRecord | None:
        kept = await engine.document(key)
        record = None if kept is None else decode(kept.data)
        return record if record is not None and record.failures == failures else None

    record: NurlRecord = await wait_until_async(nurl)
    return record


@pytest.mark.parametrize(
    "failure", [500, 404, 301, RedirectRefusedError("answered 301"), TargetUnreachableError("no connection")]
)
def test_failures_are_recorded_and_retried(failure: int | Exception) -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        (document,) = await engine.documents("nurl/", "", 10)
        await append(engine)
        nurl = await recorded(engine, document.key, failures=1)
        assert len(outbound.sent) == 1
        assert (nurl.failures, nurl.failing_since_ms, nurl.next_attempt_ms) == (1, clock.ms, clock.ms + 20)
        await append(engine)  # is told of with the retry
        await recorded(engine, document.key, failures=0)
        await asyncio.sleep(0.05)
        assert len(outbound.sent) == 3

    run(body, failure, failure)


def test_successes_are_recorded_when_the_server_stops() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 1)
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 2)
        (document,) = await engine.documents("nurl/", "", 10)
        assert document.version == 1
        await asyncio.sleep(0.005)
        await notifier.stop()
        assert outbound.closed
        (document,) = await engine.documents("nurl/", "", 10)
        assert (document.version, decode(document.data).notified_seqno) == (2, 2)

    run(body)


def test_repeats_write_nothing() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        for _ in range(3):
            await notifier.advertise(PATH, [("rows", URL)], BASE)
        (document,) = await engine.documents("nurl/", "", 10)
        assert document.version == 1
        assert await nurl_rows(engine) == [f"+\t{decode(document.data).name}\t{URL}"]

    run(body)


def test_a_repeat_ends_the_wait_of_a_nurl_that_fails() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 1)
        await asyncio.sleep(0.01)
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await wait_until_async(lambda: len(outbound.sent) == 2)

    run(body, 500, limits=Limits(notify_retry_s=60))


def test_a_nurl_is_dropped_a_day_after_its_first_failure() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 1)
        clock.ms += 86_400_000 - 1_000
        await wait_until_async(lambda: len(outbound.sent) == 2)
        assert len(await engine.documents("nurl/", "", 10)) == 1
        clock.ms += 1_000
        await wait_until_async(lambda: len(outbound.sent) >= 3)
        await asyncio.sleep(0.01)
        assert await engine.documents("nurl/", "", 10) == []
        assert (await nurl_rows(engine))[1].endswith("\tno success for 86400 s: answered 500")

    run(body, *[500] * 100)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (410, "answered 410"),
        (TargetRefusedError("partner.example resolves to 10.0.0.1"), "refused: the server does not call this address"),
    ],
)
def test_nurls_that_are_dropped_at_once(failure: int | Exception, reason: str) -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 1)
        await asyncio.sleep(0.01)
        await append(engine)
        await asyncio.sleep(0.03)
        assert len(outbound.sent) == 1
        assert await engine.documents("nurl/", "", 10) == []
        assert (await nurl_rows(engine))[1].split("\t")[2] == reason

    run(body, failure)


def test_a_full_table_of_nurls_can_be_emptied_and_filled_again() -> None:
    urls = [f"https://partner.example/{number}/{'x' * 200}" for number in range(4)]

    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        for url in urls[:3]:
            await notifier.advertise(PATH, [("rows", url)], BASE)
        with pytest.raises(StreamFullError):
            await notifier.advertise(PATH, [("rows", urls[3])], BASE)
        assert [row.split("\t")[2] for row in await nurl_rows(engine)] == urls[:3]
        for url in urls[:2]:
            await notifier.withdraw(PATH, url)
        assert len(await engine.documents("nurl/", "", 10)) == 1
        for _again in range(5):  # rows of NURLs that were removed do not fill the table
            await notifier.advertise(PATH, [("rows", urls[3])], BASE)
            await notifier.withdraw(PATH, urls[3])
        await notifier.advertise(PATH, [("rows", urls[3])], BASE)
        assert [row.split("\t")[2] for row in await nurl_rows(engine)][-1] == urls[3]
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) == 2)
        assert {url for url, _ in outbound.sent} == {urls[2], urls[3]}

    run(body, engine_limits=Limits(stream_bytes_max=1_000))


def test_a_full_disk_does_not_keep_a_nurl() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        engine._store.full = "no room"  # type: ignore[misc]
        await wait_until_async(lambda: not notifier.states())
        assert await engine.documents("nurl/", "", 10) == []
        engine._store.full = None  # type: ignore[misc]

    run(body, 410)


def test_a_nurl_whose_end_cannot_be_stored_is_not_called_again() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        waits, remove = [], notifier._registry.remove

        async def failing(*arguments: Any) -> None:
            (delivery,) = notifier._tables[next(iter(notifier._tables))].deliveries.values()
            waits.append(delivery.nurl.failures)
            if len(waits) < 4:
                raise OverloadedError("not now", retry_after_s=1)
            await remove(*arguments)

        notifier._registry.remove = failing  # type: ignore[method-assign, assignment]
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        await wait_until_async(lambda: not notifier.states())
        assert waits == [0, 1, 2, 3]  # each wait is twice the one before
        assert len(outbound.sent) == 1

    run(body, *[410] * 10, advancing=True)


def test_what_was_refused_is_not_kept() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        with pytest.raises(TargetRefusedError):
            await notifier.advertise(PATH, [("rows", URL), ("rows", "https://10.0.0.1/")], BASE)
        with pytest.raises(InvalidNotifyError):
            await notifier.advertise(PATH, [("rows", URL)], "https://no such host")
        with pytest.raises(StreamNotFoundError):
            await notifier.advertise("\x01none", [("rows", URL)], BASE)
        assert await engine.documents("nurl/", "", 10) == []

    run(body)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_restart_goes_on_with_the_schedule(crashed: bool) -> None:
    """`told` was told of all rows, `late` failed and waits, `new` was not tried yet."""

    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        for name in ("told", "late", "new"):
            await create(engine, f"\x01{name}")
            await notifier.advertise(f"\x01{name}", [("rows", f"https://{name}.example/")], BASE)
        await append(engine, "\x01told")
        await wait_until_async(lambda: len(outbound.sent) == 1)
        await append(engine, "\x01late")
        await wait_until_async(lambda: len(outbound.sent) == 2)
        await asyncio.sleep(0.01)
        if not crashed:
            await notifier.stop()
        await append(engine, "\x01new")
        clock.ms += 59_900
        after = FakeOutbound()
        restarted = Notifier(engine, LIMITS, after, public_url="https://new.example")
        await restarted.start()
        await asyncio.sleep(0.03)
        expected = {("https://new.example/", b"surl=https://new.example/v1/table/new")}
        if crashed:  # the success was not recorded
            expected.add(("https://told.example/", b"surl=https://new.example/v1/table/told"))
        assert set(after.sent) == expected
        await wait_until_async(lambda: after.sent[-1][0] == "https://late.example/")
        await restarted.stop()

    run(body, 204, 500, limits=Limits(notify_retry_s=60))


def test_nurls_of_tables_that_are_gone_are_deleted_at_the_start() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await notifier.stop()
        await engine.execute(Delete(PATH, engine.now_ms()))
        assert len(await engine.documents("nurl/", "", 10)) == 1
        await Notifier(engine, LIMITS, FakeOutbound()).start()
        assert await engine.documents("nurl/", "", 10) == []
        with pytest.raises(StreamNotFoundError):
            await engine.info(f"{PATH}/notify")

    run(body)


def test_an_expired_table_takes_its_nurls_along() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, clock: ManualClock) -> None:
        await create(engine, "\x01short", expires_ms=clock.ms + 1_000)
        await notifier.advertise("\x01short", [("rows", URL)], BASE)
        clock.ms += 2_000
        with pytest.raises(StreamNotFoundError):
            await append(engine, "\x01short")
        await wait_for_async(lambda: engine.documents("nurl/", "", 10), [])

    run(body)


def test_a_full_store_does_not_end_a_delivery() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await append(engine)
        engine._store.full = "no room"  # type: ignore[misc]
        await wait_until_async(lambda: len(outbound.sent) == 2)
        engine._store.full = None  # type: ignore[misc]
        await append(engine)
        await wait_until_async(lambda: len(outbound.sent) >= 3)

    run(body, 500, 500)


def test_withdrawn_while_a_post_is_under_way() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        outbound.free.clear()
        await append(engine)
        await wait_until_async(lambda: outbound.now == 1)
        await notifier.withdraw(PATH, URL)
        await wait_until_async(lambda: outbound.now == 0)
        assert await engine.documents("nurl/", "", 10) == []
        assert not notifier._tables

    run(body)


def form(body: bytes) -> Request:
    headers = {"content-type": "application/x-www-form-urlencoded", "host": "us.example"}
    return Request("POST", "/v1/table/prices/notify", "", headers, body)


class FakeFollowers(Followers):
    """Follows tables `prices` and `new`, and would follow into `admitted`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, None, FollowPolicy())
        self.found: list[tuple[str, str, str]] = []

    def wake(self, name: str, surl: str, trace: object = None) -> bool:
        self.found.append(("wake", name, surl))
        return name in ("prices", "new")

    async def admit(self, name: str, surl: str) -> bool:
        self.found.append(("admit", name, surl))
        return name == "admitted"


def test_a_surl_is_handed_on_with_the_name_of_the_table() -> None:
    """Recipients MUST GET `surl` (when provided) as the authoritative source of state: whoever follows it does."""
    surl = "https://peer.example/state"

    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        followers = FakeFollowers(engine)
        service = Service(engine, LIMITS, notifier, followers=followers)
        await create(engine, "\x01own")
        await engine.execute(Create(path="\x01left", now_ms=0, content_type=TYPE, kind=ContentKind.MIRROR))

        async def notified(name: str, form_body: str, to: Service = service) -> int:
            answers: list[Response] = []
            nurls.notify(to, form(form_body.encode()), f"\x01{name}", answers.append)
            await wait_until_async(lambda: answers)
            return answers[0].status

        wake, nurl = f"surl={surl}", "rows=https://peer.example/n"
        assert await notified("own", wake, Service(engine, LIMITS, notifier)) == 410  # nothing here follows it
        assert await notified("prices", f"{wake}&{nurl}") == 204
        assert followers.found == [("wake", "prices", surl)]
        assert await notified("prices", nurl) == 204
        assert len(followers.found) == 1
        assert len(await engine.documents("nurl/", "", 10)) == 1
        assert await notified("own", wake) == 410
        assert followers.found[1:] == [("wake", "own", surl)]  # a table that is no mirror follows nothing
        assert await notified("left", wake) == 410
        assert followers.found[2:] == [("wake", "left", surl), ("admit", "left", surl)]
        assert await notified("left", f"{wake}&{nurl}") == 204
        assert [await notified("none", sent) for sent in (wake, f"{wake}&{nurl}", nurl, "")] == [410, 404, 404, 404]
        for name in ("new", "admitted"):  # followed, and not created yet
            assert [await notified(name, sent) for sent in (wake, f"{wake}&{nurl}")] == [204, 503]
        before = len(followers.found)
        assert await notified("admitted", f"{wake}&rows=https://10.0.0.1/") == 403
        assert len(followers.found) == before  # nothing of that form was kept

    run(body)


def test_without_a_notifier_there_are_no_nurls() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        with pytest.raises(UnknownRouteError):
            nurls.notify(Service(engine, LIMITS), form(b""), PATH, lambda _: None)

    run(body)


def test_the_address_of_the_advertiser_matters_only_without_a_public_url() -> None:
    async def body(engine: Engine, notifier: Notifier, outbound: FakeOutbound, _: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await notifier.advertise(PATH, [("rows", URL)], "https://other.example")
        notifier.sender.public_url = "https://public.example"
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        (document,) = await engine.documents("nurl/", "", 10)
        assert (document.version, decode(document.data).base) == (2, "https://other.example")
        await append(engine)
        await wait_until_async(lambda: outbound.sent)
        assert outbound.sent[0][1] == b"surl=https://public.example/v1/table/prices"

    run(body)


def test_nurls_change_only_while_they_are_known() -> None:
    """A NURL that is withdrawn before those of the last process were loaded would be called all the same."""

    async def body(engine: Engine, notifier: Notifier, _: FakeOutbound, clock: ManualClock) -> None:
        await notifier.advertise(PATH, [("rows", URL)], BASE)
        await notifier.stop()
        after = FakeOutbound()
        restarted = Notifier(engine, LIMITS, after)
        for stopped in (restarted, notifier):
            with pytest.raises(OverloadedError, match="about to start or to stop"):
                await stopped.withdraw(PATH, URL)
            with pytest.raises(OverloadedError, match="about to start or to stop"):
                await stopped.advertise(PATH, [("rows", URL)], BASE)
        await restarted.start()
        await restarted.withdraw(PATH, URL)
        await append(engine)
        await asyncio.sleep(0.02)
        assert after.sent == []
        await restarted.stop()

    run(body)
