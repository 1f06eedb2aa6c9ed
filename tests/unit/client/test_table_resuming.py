"""A reader of a table continues after an error: no row twice, none missing, and final errors stay."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from headwater import errors, limits
from headwater.client import AsyncClient, Client, Retry, Row, TableReader
from tests.waiting import LIMIT_S

QUICK = Retry(attempts=2, first_s=0.0001, most_s=0.001)
Handler = Callable[[httpx.Request], httpx.Response]


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces. After the last one the connection is lost, stays silent, or ends."""

    def __init__(self, *pieces: bytes, end: str = "whole") -> None:
        self._pieces = pieces
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._end == "lost":
            raise httpx.ReadError("connection lost")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece
        if self._end == "silent":
            await asyncio.Event().wait()


def lines(*seqnos: int, record: str = "r") -> bytes:
    return b"".join(b"%d\t2026-01-08T00:00:00Z\t+\tk%d\t%b\n" % (seqno, seqno, record.encode()) for seqno in seqnos)


def answer(
    *pieces: bytes, last: int | None = None, end: str = "whole", version: str = "1", **head: str
) -> httpx.Response:
    headers = {"content-type": f"text/sequence; charset=utf-8; schema=text; version={version}"}
    if last is not None:
        headers["stp-last-seqno"] = str(last)
    for name, value in head.items():
        headers[name.replace("_", "-")] = value
    return httpx.Response(200, headers=headers, stream=Body(*pieces, end=end))


def since_of(request: httpx.Request) -> int:
    return int(request.url.params["since_id"])


def client(handler: Handler, **options: Any) -> Client:
    return Client("http://server", http=httpx.Client(transport=httpx.MockTransport(handler)), retry=QUICK, **options)


def scripted(*answers: Callable[[httpx.Request], httpx.Response]) -> Handler:
    """A server that answers each request with the next of these functions, and all later ones with the last."""
    left = list(answers)
    return lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)


def rest(last: int) -> Handler:
    return lambda request: answer(lines(*range(since_of(request) + 1, last + 1)), last=last)


def refused(status: int) -> Handler:
    return lambda request: httpx.Response(status)


def rows_until(reader: TableReader, error: type[errors.HeadwaterError]) -> list[int]:
    seqnos: list[int] = []
    with pytest.raises(error):
        seqnos.extend(row.seqno for row in reader)
    return seqnos


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refused(403), errors.ForbiddenError),
        (refused(401), errors.UnauthorizedError),
        (refused(404), errors.StreamNotFoundError),
        (lambda request: httpx.Response(200, headers={"content-type": "text/html"}), errors.ProtocolError),
        (lambda request: answer(b"no row\n", last=5), errors.InvalidRowError),
    ],
    ids=["403", "401", "404", "website", "no row"],
)
def test_a_reader_goes_on_after_an_error_where_it_was(fault: Handler, error: type[errors.HeadwaterError]) -> None:
    first = lambda request: answer(lines(1, 2, 3), last=5)  # noqa: E731
    with client(scripted(first, fault, rest(5))) as there:
        with there.table("t").follow() as reader:
            assert rows_until(reader, error) == [1, 2, 3]
            assert reader.seqno == 3
            iterator = iter(reader)
            assert [next(iterator).seqno, next(iterator).seqno] == [4, 5]
            assert reader.seqno == 5


def test_a_snapshot_goes_on_and_ends_with_the_rows_of_its_first_response() -> None:
    first = lambda request: answer(lines(1, 2), last=4, end="lost")  # noqa: E731
    with client(scripted(first, refused(403), rest(9))) as there:
        reader = there.table("t").rows()
        assert rows_until(reader, errors.ForbiddenError) == [1, 2]
        assert [row.seqno for row in reader] == [3, 4]
        assert [row.seqno for row in reader] == []


def test_a_gap_that_stays_is_an_error_each_time_and_hides_no_row() -> None:
    gap = lambda request: answer(lines(1, 2, 4), last=4, stp_gapless="true")  # noqa: E731
    holed = [gap] * (2 * limits.FOLLOW_TRIES_MAX)
    with client(scripted(*holed, rest(4))) as there, there.table("t").follow() as reader:
        assert rows_until(reader, errors.MissingRowError) == [1, 2]
        assert rows_until(reader, errors.MissingRowError) == []
        iterator = iter(reader)
        assert [next(iterator).seqno, next(iterator).seqno] == [3, 4]


def test_a_table_that_is_filled_again_is_compared_with_the_last_row() -> None:
    gone = lambda request: answer(last=1)  # noqa: E731
    first = lambda request: answer(lines(1, 2, 3), last=3)  # noqa: E731
    refilled = lambda request: answer(lines(1, 2), lines(3, record="other"), lines(4), last=4)  # noqa: E731
    same = scripted(first, *[gone] * limits.FOLLOW_TRIES_MAX, rest(4))
    with client(same) as there, there.table("t").follow() as reader:
        assert rows_until(reader, errors.RowsGoneError) == [1, 2, 3]
        assert next(iter(reader)).seqno == 4
    other = scripted(first, *[gone] * limits.FOLLOW_TRIES_MAX, refilled)
    with client(other) as there, there.table("t").follow() as reader:
        assert rows_until(reader, errors.RowsGoneError) == [1, 2, 3]
        assert rows_until(reader, errors.HistoryChangedError) == []


def trimmed(first: int) -> Handler:
    """A table whose rows below `first` were removed. It has rows up to 9."""

    def handle(request: httpx.Request) -> httpx.Response:
        since = since_of(request)
        if 0 < since < first - 1:
            headers = {"content-type": "application/problem+json", "stp-first-seqno": str(first)}
            return httpx.Response(410, headers=headers, json={"type": "urn:headwater:offset-trimmed", "detail": "why"})
        rows = lines(*range(max(since + 1, first), 10))
        return answer(rows, last=9, stp_first_seqno=str(first), stp_gapless="true", stream_closed="true")

    return handle


def test_a_table_that_was_trimmed_is_read_from_its_first_row() -> None:
    with client(trimmed(7)) as there:
        assert [row.seqno for row in there.table("t").rows()] == [7, 8, 9]
        assert [row.seqno for row in there.table("t").follow()] == [7, 8, 9]


def test_rows_that_were_removed_before_they_were_read_are_an_error_or_the_read_begins_again() -> None:
    with client(trimmed(7)) as there, there.table("t").follow(since_id=3) as reader:
        assert rows_until(reader, errors.OffsetTrimmedError) == []
        with pytest.raises(errors.OffsetTrimmedError) as caught:
            next(iter(reader))
        assert caught.value.first_seqno == 7
    failures: list[errors.HeadwaterError] = []
    with client(trimmed(7)) as there, there.table("t").follow(since_id=3, on_gone=failures.append) as reader:
        batches = [(reader.restarted, reader.seqno, [row.seqno for row in rows]) for rows in reader.batches()]
    assert batches[0] == (True, 0, [])
    assert (False, 9, [7, 8, 9]) in batches
    assert not any(restarted for restarted, _, _ in batches[1:])
    assert [type(error) for error in failures] == [errors.OffsetTrimmedError]


def test_rows_that_were_removed_after_they_were_read_are_no_loss() -> None:
    """The last row is not compared any more."""
    first = lambda request: answer(lines(1, 2, 3, 4, 5, 6), last=6)  # noqa: E731
    with client(scripted(first, trimmed(7))) as there, there.table("t").follow() as reader:
        assert [row.seqno for row in reader] == list(range(1, 10))
    last = Row(6, "2026-01-08T00:00:00Z", "+", "k6", "r")
    with client(trimmed(7)) as there, there.table("t").follow(last_row=last) as reader:
        assert [row.seqno for row in reader] == [7, 8, 9]


def test_plain_410_of_another_server_lets_a_read_begin_again_once() -> None:
    other = lambda request: answer(lines(8, 9), last=9, stream_closed="true")  # noqa: E731
    with client(scripted(refused(410), other)) as there:
        assert [row.seqno for row in there.table("t").follow(since_id=3, on_gone="restart")] == [8, 9]
    with client(refused(410)) as there, pytest.raises(errors.StreamGoneError):
        list(there.table("t").follow(since_id=3, on_gone="restart"))


def test_a_table_that_was_created_again_is_read_again() -> None:
    first = lambda request: answer(lines(1, 2, 3), last=3)  # noqa: E731
    other = lambda request: answer(  # noqa: E731
        lines(*range(since_of(request) + 1, 6), record="other"), last=5, stream_closed="true"
    )
    with client(scripted(first, other)) as there, there.table("t").follow(on_gone="restart") as reader:
        assert [row.seqno for row in reader] == [1, 2, 3, 1, 2, 3, 4, 5]


FINAL: list[tuple[Handler, type[errors.HeadwaterError]]] = [
    (lambda request: answer(lines(3, record="other"), last=5), errors.HistoryChangedError),
    (lambda request: answer(lines(5), lines(4), last=4), errors.RowOrderError),
    (lambda request: answer(lines(4), last=4, version="2"), errors.SchemaChangedError),
    (lambda request: answer(lines(4).replace(b"k4", rb"k\x"), last=4), errors.InvalidRowError),
]


@pytest.mark.parametrize(("fault", "error"), FINAL, ids=["history", "order", "schema", "escape"])
def test_an_error_that_later_rows_would_hide_is_final(fault: Handler, error: type[errors.HeadwaterError]) -> None:
    escaping = "; escape=backslash"

    def escaped(handler: Handler) -> Handler:
        def handle(request: httpx.Request) -> httpx.Response:
            response = handler(request)
            response.headers["content-type"] += escaping
            return response

        return handle

    first = lambda request: answer(lines(1, 2, 3), last=3)  # noqa: E731
    requests = 0

    def later(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        return rest(9)(request)

    with client(scripted(escaped(first), escaped(fault), escaped(later))) as there:
        with there.table("t").follow() as reader:
            seqnos = rows_until(reader, error)
            assert seqnos in ([1, 2, 3], [1, 2, 3, 5])
            for _ in range(2):
                assert rows_until(reader, error) == []
    assert requests == 0


def test_rows_before_one_that_cannot_be_unescaped_are_delivered() -> None:
    bad = lines(1, 2) + lines(3).replace(b"k3", rb"k\x") + lines(4)
    with client(lambda request: answer(bad, last=4, version="1; escape=backslash")) as there:
        assert rows_until(there.table("t").rows(), errors.InvalidRowError) == [1, 2]


def test_a_read_that_is_cancelled_goes_on() -> None:
    asyncio.run(_cancel_and_go_on())


async def _cancel_and_go_on() -> None:
    silent = lambda request: answer(lines(1, 2), last=2, end="silent")  # noqa: E731
    http = httpx.AsyncClient(transport=httpx.MockTransport(scripted(silent, rest(3))))
    async with AsyncClient("http://server", http=http, retry=QUICK) as there:
        reader = there.table("t").follow()
        seqnos: list[int] = []

        async def read() -> None:
            async for row in reader:
                seqnos.append(row.seqno)

        task = asyncio.create_task(read())
        async with asyncio.timeout(LIMIT_S):
            while len(seqnos) < 2:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert await anext(aiter(reader)) is not None
        assert (seqnos, reader.seqno) == ([1, 2], 3)
        await reader.close()
        assert [row async for row in reader] == []


ROWS = 30


@pytest.mark.parametrize("seed", range(15))
def test_any_faults_in_any_order_deliver_every_row_once(seed: int) -> None:
    dice = random.Random(seed)

    def handle(request: httpx.Request) -> httpx.Response:
        since = since_of(request)
        whole = lines(*range(since + 1, min(ROWS, since + dice.randrange(1, 9)) + 1))
        match dice.randrange(8):
            case 0:
                raise httpx.ConnectError("refused")
            case 1:
                return httpx.Response(dice.choice([401, 403, 404, 429, 500, 503]))
            case 2:
                return answer(whole[: dice.randrange(len(whole) + 1)], last=ROWS, stp_gapless="true", end="lost")
            case 3:
                return answer(whole[: dice.randrange(len(whole) + 1)], last=ROWS, stp_gapless="true")
            case 4:
                return answer(whole, b"no row\n", last=ROWS, stp_gapless="true")
            case 5:
                return httpx.Response(200, headers={"content-type": "text/html"})
        return answer(whole, last=ROWS, stp_gapless="true", stream_closed="true" if dice.randrange(2) else "false")

    seqnos: list[int] = []
    with client(handle) as there:
        reader = there.table("t").follow() if dice.randrange(2) else there.table("t").rows()
        for _ in range(1_000):
            try:
                seqnos.extend(row.seqno for row in reader)
            except (errors.HistoryChangedError, errors.RowOrderError):
                raise
            except errors.HeadwaterError:
                continue
            else:
                break
    assert seqnos == list(range(1, ROWS + 1))
