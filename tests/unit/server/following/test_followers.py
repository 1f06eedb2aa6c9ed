"""Followers against honest and hostile servers: the mirror has the remote's rows, or the status says why not."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headwater import errors, limits
from headwater.client import Client, Put, Remove
from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import StreamNotFoundError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, WriteDocument, WriteDocuments
from headwater.log.content import ContentKind
from headwater.protocol.tables.following import TableFollowing
from headwater.protocol.tables.paths import log_path
from headwater.server.following import Followers, follower, open_followers, parse_policy
from headwater.server.following.documents import Stopped, forgotten, resolved, write_stopped
from headwater.server.following.follower import Follower, FollowerState, FollowerStatus
from headwater.store.memory import MemoryStore
from tests.restores import LastingStore
from tests.servers import serving
from tests.table_servers import CONTENT_TYPE, Script, head, hostile_server, lines, table_server
from tests.trimming import keep_last
from tests.unit.client import test_tables as scripts
from tests.unit.engine.test_engine import with_engine
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.slow  # servers, and time-outs that pass

PATH = log_path("t")
FOLLOWING, RETRYING, STOPPED = FollowerState.FOLLOWING, FollowerState.RETRYING, FollowerState.STOPPED


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(limits, "RETRY_MAX_S", 0.02)
    monkeypatch.setattr(limits, "FOLLOW_POLL_S", 0.005)
    monkeypatch.setattr(limits, "FOLLOW_POLL_MAX_S", 0.02)
    monkeypatch.setattr(follower, "TableFollowing", functools.partial(TableFollowing, repeated_bytes_max=2_000_000))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long followers wait, one after the other: what they do not do is what they wait for."""
    begun: list[float] = []
    pause = Follower._pause

    async def noted(follower: Follower, wait_s: float, *, wakeable: bool = True) -> None:
        begun.append(wait_s)
        await pause(follower, wait_s, wakeable=wakeable)

    monkeypatch.setattr(Follower, "_pause", noted)
    return begun


async def rows(engine: Engine) -> bytes:
    return (await engine.read(Read(PATH, bytes_max=10_000_000))).data


async def until(followers: Followers, wanted: Callable[[FollowerStatus], object]) -> FollowerStatus:
    statuses: list[FollowerStatus] = []

    def holds() -> bool:
        statuses[:] = [followers.status()[0]]
        return bool(wanted(statuses[0]))

    await wait_until_async(holds)
    return statuses[0]


async def notified(followers: Followers, name: str, surl: str) -> bool:
    """As the handler of a NURL does for a table that is a mirror, or does not exist."""
    return followers.wake(name, surl) or await followers.admit(name, surl)


def following(
    url: str,
    body: Callable[[Engine, Followers], Awaitable[None]],
    *,
    before: Callable[[Engine], Awaitable[None]] | None = None,
    store: MemoryStore | None = None,
    allowed: tuple[str, ...] = (),
) -> None:
    """Run a body beside a follower that mirrors a SURL, if there is one, into the table t."""

    async def main(engine: Engine) -> None:
        if before is not None:
            await before(engine)
        policy = parse_policy({"t": url} if url else {}, allowed, development=True)
        followers = open_followers(engine, policy, engine.limits)
        await followers.start()
        try:
            await body(engine, followers)
        finally:
            await followers.stop()

    with_engine(main, store, run=asyncio.run)


# A server that removes rows


@pytest.mark.parametrize("fits", [True, False])
def test_rows_that_were_removed_before_they_were_mirrored(fits: bool) -> None:
    """The follower did not run meanwhile."""
    store = LastingStore()
    with serving(Limits()) as server, Client(server.url) as client:
        source = client.table("source")
        source.create()
        source.append([Put("a", "1"), Put("b", "2"), Put("c", "3")])
        surl = source.url

        async def first(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 3)

        following(surl, first, store=store)
        source.append([Remove("a"), Remove("b"), Remove("x")] if fits else [Put("x", "4")])
        source.append([Put("c", "5")])
        source.append([Put("d", "6")])
        keep_last(source, 2)
        last = source.info().last_seqno or 0

        async def again(engine: Engine, followers: Followers) -> None:
            if fits:
                await until(followers, lambda status: status.last_seqno == last and status.state is FOLLOWING)
                fields = [line.split(b"\t") for line in (await rows(engine)).splitlines()]
                changes = [(int(line[0]), line[2], line[3]) for line in fields]
                assert changes[3:] == [(4, b"-", b"a"), (5, b"-", b"b"), (7, b"+", b"c"), (8, b"+", b"d")]
                await asyncio.to_thread(source.append, [Put("e", "9")])
                await until(followers, lambda status: status.last_seqno == last + 1)
            else:
                status = await until(followers, lambda status: status.state is STOPPED)
                assert "2 keys of the mirror are not in the source" in (status.last_error or "")
                assert "headwater table delete t" in (status.last_error or "")

        following(surl, again, store=store)

        async def once_more(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.state is (FOLLOWING if fits else STOPPED))

        following(surl, once_more, store=store)


# An honest server


def test_rows_are_mirrored_as_they_arrive_and_keep_seqno_and_timestamp() -> None:
    with table_server() as server:
        server.put("t", "+ a 1", "+ b 2")

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 2)
            for number in range(3, 30):
                server.put("t", f"+ k{number} r")
            status = await until(followers, lambda status: status.last_seqno == 29)
            assert (status.state, status.last_error, status.lag_rows) == (FOLLOWING, None, 0)
            assert await rows(engine) == b"".join(server.tables["t"].rows)
            table = await engine.info(PATH)
            assert (table.kind, table.content_type) == (ContentKind.MIRROR, CONTENT_TYPE)

        following(f"{server.url}/v1/table/t", body)


def test_a_table_that_is_larger_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.server.following.mirror.FOLLOW_BATCH_BYTES", 4_096)
    sizes: list[int] = []
    with table_server() as server:
        server.put("t", *(f"+ k{number} {'r' * 300}" for number in range(2_000)))

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 2_000)
            assert await rows(engine) == b"".join(server.tables["t"].rows)
            assert max(sizes) < 4_096 + limits.OUTBOUND_READ_BYTES + 400

        submit = Engine.execute

        async def noted(engine: Engine, command: object) -> object:
            if isinstance(command, Append):
                sizes.append(len(command.body))
            return await submit(engine, command)  # type: ignore[arg-type]

        monkeypatch.setattr(Engine, "execute", noted)
        following(f"{server.url}/v1/table/t", body)


def test_the_next_follower_resumes_after_the_last_row() -> None:
    with table_server() as server:
        server.put("t", "+ a 1", "+ b 2")

        async def mirrored(engine: Engine) -> None:
            await engine.execute(
                Create(
                    path=PATH,
                    now_ms=0,
                    content_type=CONTENT_TYPE,
                    kind=ContentKind.MIRROR,
                    body=b"".join(server.tables["t"].rows),
                )
            )
            server.put("t", "+ c 3")

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 3)
            assert "since_id=1&" in server.requests[0]  # row 2 is asked for once more, to be compared
            assert await rows(engine) == b"".join(server.tables["t"].rows)

        following(f"{server.url}/v1/table/t", body, before=mirrored)


def test_a_remote_table_that_is_closed_ends_the_follower_and_closes_the_mirror() -> None:
    with table_server() as server:
        server.put("t", "+ a 1")
        server.tables["t"].closed = True

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.state is STOPPED)
            assert status.last_error is None
            assert (await engine.info(PATH)).closed
            assert await rows(engine) == server.tables["t"].rows[0]

        following(f"{server.url}/v1/table/t", body)


def test_a_table_that_does_not_exist_yet_is_waited_for() -> None:
    with table_server() as server:

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.last_error)
            assert status.state is RETRYING
            assert "404" in str(status.last_error)
            server.put("t", "+ a 1")
            status = await until(followers, lambda status: status.last_seqno == 1)
            assert (status.state, status.last_error) == (FOLLOWING, None)

        following(f"{server.url}/v1/table/t", body)


def test_a_server_that_says_when_to_come_back_is_asked_then(pauses: list[float]) -> None:
    def busy(number: int, path: str) -> Iterator[bytes]:
        pause_s = "3600" if number == 0 else "1"
        yield head("503 Service Unavailable", Retry_After=pause_s) if number < 2 else head() + lines(1)

    with hostile_server(busy) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_error and pauses)
            assert (pauses, len(server.seen)) == ([limits.FOLLOW_REFUSED_S], 1)  # that is the longest wait
            assert followers.wake("t", server.url)  # or at once, if it says itself that there is something
            await until(followers, lambda status: len(server.seen) == 2)
            await until(followers, lambda status: status.last_seqno == 1)
            assert pauses[1] == 1.0

        following(server.url, body)


def test_nobody_listens(pauses: list[float]) -> None:
    async def body(engine: Engine, followers: Followers) -> None:
        for failures in (1, 5):
            status = await until(followers, lambda status: len(pauses) >= failures)  # noqa: B023
            assert status.state is RETRYING
            assert status.last_error

    following("http://127.0.0.1:1025/v1/table/t", body)


# Local tables


def test_a_local_table_that_is_no_mirror_is_left_alone(pauses: list[float]) -> None:
    async def occupied(engine: Engine) -> None:
        await engine.execute(
            Create(path=PATH, now_ms=0, content_type=CONTENT_TYPE, kind=ContentKind.ROWS, body=b"+\tk\tr")
        )

    with table_server() as server:
        server.put("t", "+ a 1", "+ b 2")

        async def body(engine: Engine, followers: Followers) -> None:
            before = await rows(engine)
            status = await until(followers, lambda status: status.last_error and pauses)
            assert status.state is RETRYING
            assert "is not a mirror" in str(status.last_error)
            assert pauses == [limits.FOLLOW_REFUSED_S]
            assert await rows(engine) == before
            assert not server.requests

        following(f"{server.url}/v1/table/t", body, before=occupied)


def test_a_mirror_of_another_schema_is_left_alone() -> None:
    async def other(engine: Engine) -> None:
        kind = CONTENT_TYPE.replace("version=1", "version=2")
        await engine.execute(Create(path=PATH, now_ms=0, content_type=kind, kind=ContentKind.MIRROR, body=lines(1)))

    with table_server() as server:
        server.put("t", "+ a 1", "+ b 2")

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.state is STOPPED)
            assert errors.SchemaChangedError.title in str(status.last_error)
            assert await rows(engine) == lines(1)

        following(f"{server.url}/v1/table/t", body, before=other)


def test_a_local_table_that_is_replaced_is_not_written_to() -> None:
    with table_server() as server:
        server.put("t", "+ a 1")

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 1)
            await engine.execute(Delete(PATH, engine.now_ms()))
            await engine.execute(Create(path=PATH, now_ms=0, content_type=CONTENT_TYPE, kind=ContentKind.ROWS))
            server.put("t", "+ b 2")
            status = await until(followers, lambda status: status.last_error)
            assert status.state is RETRYING
            assert (await engine.info(PATH)).last_seqno == 0

        following(f"{server.url}/v1/table/t", body)


@pytest.mark.parametrize("failure", [errors.StorageFullError, errors.OverloadedError])
@pytest.mark.parametrize("batch_bytes", [100, 1_000_000])
def test_a_mirror_that_cannot_be_appended_to_is_tried_again(
    failure: type[errors.HeadwaterError], batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.server.following.mirror.FOLLOW_BATCH_BYTES", batch_bytes)
    execute, failing = Engine.execute, asyncio.Event()
    failing.set()

    async def refused(engine: Engine, command: object) -> object:
        if isinstance(command, Append) and failing.is_set():
            await asyncio.sleep(0.002)
            raise failure("this once")
        return await execute(engine, command)  # type: ignore[arg-type]

    with table_server() as server:
        server.idle_s = 60.0  # it is silent after the rows
        server.put("t", *(f"+ k{number} r" for number in range(2_000)))

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.last_error)
            assert "this once" in str(status.last_error)
            failing.clear()
            await until(followers, lambda status: status.last_seqno == 2_000)
            assert await rows(engine) == b"".join(server.tables["t"].rows)

        monkeypatch.setattr(Engine, "execute", refused)
        following(f"{server.url}/v1/table/t", body)


# Hostile servers


def refused_by_the_client(number: int, path: str) -> Iterator[bytes]:
    yield head(Content_Encoding="gzip") + scripts.BOMB


HOSTILE: list[tuple[Script, FollowerState, type[errors.HeadwaterError], list[int]]] = [
    (scripts.out_of_order, STOPPED, errors.RowOrderError, [1, 2, 4]),
    (scripts.out_of_order_gapless, RETRYING, errors.MissingRowError, [1, 2]),
    (scripts.missing, RETRYING, errors.MissingRowError, [1, 2]),
    (scripts.truncated_always, RETRYING, errors.InvalidRowError, [1, 2]),
    (scripts.wrong_type, RETRYING, errors.ProtocolError, []),
    (scripts.schema_changes, STOPPED, errors.SchemaChangedError, [1, 2]),
    (scripts.endless_line, RETRYING, errors.InvalidRowError, [1]),
    (scripts.endless_body, RETRYING, errors.ProtocolError, []),
    (refused_by_the_client, RETRYING, errors.TargetAnswerError, []),
    (scripts.unasked_encoding, RETRYING, errors.TargetAnswerError, []),
    (scripts.redirect, RETRYING, errors.RedirectRefusedError, []),
    (scripts.restarts, RETRYING, errors.HistoryChangedError, [1, 2, 3]),
    (scripts.changes_history, STOPPED, errors.HistoryChangedError, [1, 2, 3]),
    (scripts.no_row_at_all, RETRYING, errors.InvalidRowError, [1]),
    (scripts.bad_last_seqno, RETRYING, errors.ProtocolError, []),
    (scripts.nothing_but_garbage, RETRYING, errors.TargetUnreachableError, []),
]


@pytest.mark.parametrize(
    ("script", "state", "error", "expected"), HOSTILE, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_hostile_server_ends_in_a_clear_error(
    script: Script,
    state: FollowerState,
    error: type[errors.HeadwaterError],
    expected: list[int],
    pauses: list[float],
) -> None:
    with hostile_server(script) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(
                followers, lambda found: found.state is state and str(found.last_error).startswith(error.title)
            )
            assert server.url in str(status.last_error)
            if script is scripts.endless_body:
                assert (await rows(engine)).startswith(b"1\t")
                assert (await engine.info(PATH)).last_seqno == 1
            elif expected:
                await until(followers, lambda found: found.last_seqno == expected[-1])
                assert await rows(engine) == lines(*expected)
            else:
                await absent_or_empty(engine)
            if not error.retryable:
                await until(  # it is no longer asked again soon
                    followers, lambda found: found.state is STOPPED or pauses[-1:] == [limits.FOLLOW_REFUSED_S]
                )
                assert len(server.seen) <= limits.FOLLOW_TRIES_MAX + 1

        following(server.url, body)
        assert max(server.sent_bytes) < 20_000_000  # of an answer without end


async def absent_or_empty(engine: Engine) -> None:
    try:
        assert await rows(engine) == b""
    except StreamNotFoundError:
        return


@pytest.mark.parametrize(
    "script",
    [scripts.missing_once, scripts.repeated, scripts.truncated, scripts.truncated_by_length],
    ids=lambda script: script.__name__,
)
def test_what_can_be_mended_is(script: Script) -> None:
    with hostile_server(script) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno >= 6)
            assert (await rows(engine)).startswith(lines(1, 2, 3, 4, 5, 6))

        following(server.url, body)


def test_a_table_that_is_filled_again_is_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the mirror that a server makes again after its deletion: it has the same rows, after a while."""
    monkeypatch.setattr(limits, "FOLLOW_REFUSED_S", 0.02)
    begun = 3 * limits.FOLLOW_TRIES_MAX

    def filled_again(number: int, path: str) -> Iterator[bytes]:
        last = 3 if number < 2 else 1 if number < begun else 5
        yield head(STP_Last_SeqNo=str(last)) + lines(*range(scripts.since_of(path) + 1, last + 1))

    with hostile_server(filled_again) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: "ends with row 1" in str(status.last_error))
            await until(followers, lambda status: status.last_seqno == 5)
            assert await rows(engine) == lines(1, 2, 3, 4, 5)

        following(server.url, body)


def test_a_history_that_changed_while_the_server_was_down_is_noticed() -> None:
    async def mirrored(engine: Engine) -> None:
        await engine.execute(
            Create(path=PATH, now_ms=0, content_type=CONTENT_TYPE, kind=ContentKind.MIRROR, body=lines(1, 2, 3))
        )

    def made_again(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(*range(scripts.since_of(path) + 1, 9), record="other")

    with hostile_server(made_again) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.state is STOPPED)
            assert errors.HistoryChangedError.title in str(status.last_error)
            assert await rows(engine) == lines(1, 2, 3)

        following(server.url, body, before=mirrored)


# Notify


def test_notify_wakes_the_follower_of_a_surl(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    monkeypatch.setattr(limits, "FOLLOW_POLL_S", 30.0)
    monkeypatch.setattr(limits, "FOLLOW_POLL_MAX_S", 30.0)

    def answered_at_once(number: int, path: str) -> Iterator[bytes]:
        yield head() + (lines(1) if number < 4 else lines(1, 2))

    with hostile_server(answered_at_once) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: len(server.seen) == len(pauses) == 3)
            assert pauses[-1] == limits.FOLLOW_POLL_S
            assert not followers.wake("other", f"{server.url}/other")
            assert len(server.seen) == 3
            assert followers.wake("other", server.url)
            await until(followers, lambda status: len(server.seen) == 4)
            assert followers.wake("t", "https://another.example/address/of/the/same/server")
            await until(followers, lambda status: len(server.seen) >= 5)
            await until(followers, lambda status: status.last_seqno == 2)

        following(server.url, body)


def receiving(followers: Followers) -> asyncio.Timeout:
    """The timeout of the request of the follower of the table t."""
    task = followers._tasks["t"][0]._receiving
    assert task is not None
    return task


def test_notify_gives_up_an_answer_that_is_held_open_and_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLLOW_NOTIFIED_S", 3_600.0)
    ended = threading.Event()

    def dead(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(1, 2)[:-3] if not number else head() + lines(1, 2)
        if not number:
            ended.wait(LIMIT_S)

    with hostile_server(dead) as server:

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 1)
            assert followers.wake("t", server.url)  # just after a row: the connection is alive
            assert receiving(followers).when() is None
            assert len(server.seen) == 1
            monkeypatch.setattr(limits, "FOLLOW_NOTIFIED_S", 0.0)  # long after it
            assert followers.wake("t", server.url)
            status = await until(followers, lambda status: status.last_seqno == 2)
            assert status.last_error is None
            ended.set()

        following(server.url, body)


def test_notify_does_not_disturb_an_answer_that_brings_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLLOW_NOTIFIED_S", LIMIT_S)
    with table_server() as server:
        server.idle_s = 2 * LIMIT_S
        server.put("t", "+ k 1")

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 1)
            followers._tasks["t"][0]._heard_at -= 2 * LIMIT_S  # long ago
            assert followers.wake("t", f"{server.url}/v1/table/t")
            assert receiving(followers).when() is not None
            server.put("t", "+ k 2")
            await until(followers, lambda status: status.last_seqno == 2)
            assert receiving(followers).when() is None
            assert len(server.requests) == 1
            assert await rows(engine) == b"".join(server.tables["t"].rows)

        following(f"{server.url}/v1/table/t", body)


def test_notify_follows_what_the_policy_allows_and_nothing_else() -> None:
    with table_server() as server:
        for name in ("a/t", "b/t", "at"):
            server.put(name, "+ k r")

        async def body(engine: Engine, followers: Followers) -> None:
            root = f"{server.url}/v1/table"
            for surl in (
                f"{root}/b/t",
                f"{root}/at",
                "http://127.0.0.1:1026/v1/table/a/t",
                "ftp://x",
                "http://10.0.0.1/",
            ):
                assert not await notified(followers, "t", surl)
            assert followers.status() == []
            assert await notified(followers, "t", f"{root}/a/t")
            await until(followers, lambda status: status.last_seqno == 1)
            assert await notified(followers, "u", f"{root}/a/t")
            assert await notified(followers, "t", f"{root}/a/u")  # wakes what the table follows
            assert [(status.name, status.surl) for status in followers.status()] == [("t", f"{root}/a/t")]

        following("", body, allowed=(f"{server.url}/v1/table/a",))


def test_what_notify_named_is_followed_after_a_restart_while_the_policy_allows_it() -> None:
    store = LastingStore()
    with table_server() as server:
        server.put("a/t", "+ k 1")
        surl = f"{server.url}/v1/table/a/t"
        allowed = (f"{server.url}/v1/table/a",)

        async def admitted(engine: Engine, followers: Followers) -> None:
            assert await asyncio.gather(*(followers.admit("t", surl) for _ in range(3))) == [True] * 3
            assert len(await engine.documents("follow/", "", 10)) == 1
            await until(followers, lambda status: status.last_seqno == 1)

        async def no_longer_allowed(engine: Engine, followers: Followers) -> None:
            assert followers.status() == []
            assert not await notified(followers, "t", surl)

        async def allowed_again(engine: Engine, followers: Followers) -> None:
            server.put("a/t", "+ k 2")
            await until(followers, lambda status: status.last_seqno == 2)

        async def deleted(engine: Engine, followers: Followers) -> None:
            await engine.execute(Delete(PATH, engine.now_ms(), (forgotten("t"),)))
            followers.mirror_deleted("t")
            assert followers.status() == []
            await followers.stop()  # all that it had begun has ended
            with pytest.raises(StreamNotFoundError):
                await engine.info(PATH)

        async def not_followed(engine: Engine, followers: Followers) -> None:
            assert followers.status() == []

        following("", admitted, allowed=allowed, store=store)
        following("", no_longer_allowed, store=store)
        following("", allowed_again, allowed=allowed, store=store)
        following("", deleted, allowed=allowed, store=store)
        following("", not_followed, allowed=allowed, store=store)


def test_a_surl_that_cannot_be_recorded_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(engine: Engine, command: object) -> object:
        raise errors.StorageFullError("no room")

    with table_server() as server:

        async def body(engine: Engine, followers: Followers) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Engine, "execute", full)
                with pytest.raises(errors.StorageFullError):
                    await followers.admit("t", server.url)
            assert followers.status() == []

        following("", body, allowed=(server.url,))


def test_a_document_that_names_no_surl_is_left_out() -> None:
    async def damaged(engine: Engine) -> None:
        for key, data in (("follow/a", b"nonsense"), ("follow/b", b'{"name": "b", "surl": "ftp://x"}')):
            await engine.execute(WriteDocuments((WriteDocument(key, data),)))

    async def body(engine: Engine, followers: Followers) -> None:
        assert followers.status() == []

    following("", body, before=damaged, allowed=("http://127.0.0.1:1026/",))


def test_followers_that_do_not_run_do_not_say_that_nothing_is_followed() -> None:
    """A 410 would end the notifications for good."""

    async def main(engine: Engine) -> None:
        followers = open_followers(engine, parse_policy(), engine.limits)
        with pytest.raises(errors.OverloadedError):
            followers.wake("t", "https://shop.example/t")
        await followers.start()
        assert not followers.wake("t", "https://shop.example/t")
        await followers.stop()
        with pytest.raises(errors.OverloadedError):
            followers.wake("t", "https://shop.example/t")

    with_engine(main, run=asyncio.run)


def test_a_mirror_that_is_deleted_is_made_again_from_the_beginning() -> None:
    with table_server() as server:
        server.idle_s = 60.0  # the answer is held open, and silent
        server.put("t", "+ a 1", "+ b 2")

        async def body(engine: Engine, followers: Followers) -> None:
            await until(followers, lambda status: status.last_seqno == 2)
            before = await engine.info(PATH)
            await engine.execute(Delete(PATH, engine.now_ms(), (forgotten("t"),)))
            followers.mirror_deleted("t")
            await until(followers, lambda status: status.last_seqno == 2)
            assert (await engine.info(PATH)).id != before.id
            assert await rows(engine) == b"".join(server.tables["t"].rows)

        following(f"{server.url}/v1/table/t", body)


def test_a_follower_that_stopped_stops_again_after_a_restart_and_leaves_the_mirror_as_it_is() -> None:
    store = LastingStore()
    with hostile_server(scripts.changes_history) as server:

        async def stopped(engine: Engine, followers: Followers) -> None:
            status = await until(followers, lambda status: status.state is STOPPED)
            assert errors.HistoryChangedError.title in str(status.last_error)
            assert await rows(engine) == lines(1, 2, 3)
            assert not followers.wake("t", server.url)  # so that the remote server drops our NURL

        def made_again(number: int, path: str) -> Iterator[bytes]:
            yield head() + lines(*range(scripts.since_of(path) + 1, 9), record="other")

        following(server.url, stopped, store=store)
        with hostile_server(made_again) as second:
            server.url = second.url
            following(server.url, stopped, store=store)


def test_a_row_that_came_too_late_is_reported_after_a_restart_until_the_mirror_is_deleted() -> None:
    store, ordered = LastingStore(), [False]

    def answers(number: int, path: str) -> Iterator[bytes]:
        since = scripts.since_of(path)
        seqnos = [seqno for seqno in (1, 2, 3) if seqno > since]
        yield head(STP_Last_SeqNo="3")
        if ordered[0]:
            yield lines(*seqnos)
        else:
            yield lines(3) + lines(3) * 40_000 + lines(1, 2)

    async def stopped(engine: Engine, followers: Followers) -> None:
        status = await until(followers, lambda status: status.state is STOPPED)
        assert errors.RowOrderError.title in str(status.last_error)
        assert "headwater table delete t" in str(status.last_error)
        assert await rows(engine) == lines(3)

    async def resolve(engine: Engine, followers: Followers) -> None:
        await stopped(engine, followers)
        await engine.execute(Delete(PATH, engine.now_ms(), (forgotten("t"), resolved("t"))))
        followers.mirror_deleted("t")
        await until(followers, lambda status: status.state is FOLLOWING and status.last_seqno == 3)
        assert await rows(engine) == lines(1, 2, 3)

    with hostile_server(answers) as server:
        following(server.url, stopped, store=store)
        ordered[0] = True
        following(server.url, resolve, store=store)


def test_a_mirror_of_short_rows_serves_whole_rows() -> None:
    def answers(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(1) + b"\n2\tt\t-\tk1\n"

    async def body(engine: Engine, followers: Followers) -> None:
        await until(followers, lambda status: status.last_seqno == 2)
        assert await rows(engine) == lines(1) + b"2\tt\t-\tk1\t\n"

    with hostile_server(answers) as server:
        following(server.url, body)


def test_the_fault_of_a_mirror_that_is_gone_does_not_stop_its_successor() -> None:
    async def before(engine: Engine) -> None:
        await write_stopped(engine, "t", Stopped(4_711, "a row is missing"))

    async def body(engine: Engine, followers: Followers) -> None:
        await until(followers, lambda status: status.state is FOLLOWING and status.last_seqno == 1)
        assert await engine.document("stopped/t") is None

    with table_server() as server:
        server.put("t", "+ a 1")
        following(f"{server.url}/v1/table/t", body, before=before)


def test_nothing_is_followed_by_default() -> None:
    async def body(engine: Engine, followers: Followers) -> None:
        assert not await notified(followers, "t", "http://127.0.0.1:1026/v1/table/t")
        assert followers.status() == []

    following("", body)


@pytest.mark.parametrize(
    ("follow", "allow"),
    [
        (["t"], []),
        (["=http://localhost/t"], []),
        (["t=http://10.0.0.1/t"], []),
        (["t=http://example.com/t"], []),
        (["t=http://localhost/t?since_id=4"], []),
        (["__stp/t=http://localhost/t"], []),
        (["t/notify=http://localhost/t"], []),
        (["t=http://localhost/t", "t=http://localhost/u"], []),
        ([], ["file:///etc"]),
    ],
)
def test_a_policy_that_makes_no_sense(follow: list[str], allow: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_policy(follow, allow, development=True)


def test_loopback_is_followed_in_development_only() -> None:
    assert parse_policy(["t=http://127.0.0.1:4437/v1/table/t"], development=True).follows
    with pytest.raises(ValueError, match="https"):
        parse_policy(["t=http://127.0.0.1:4437/v1/table/t"])
