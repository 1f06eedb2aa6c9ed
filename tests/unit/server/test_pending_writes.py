"""Writes that wait for their outcome."""

from __future__ import annotations

import asyncio

import pytest

from headwater.errors import UnavailableError
from headwater.limits import OUTCOME_S
from headwater.server.http import Response
from headwater.server.pending_writes import PendingWrites
from tests.virtual_time import run

DONE = Response(204)


def test_each_write_gets_its_outcome() -> None:
    async def main() -> None:
        writes, responses = PendingWrites(), list[Response]()
        ends = [writes.watch(responses.append) for _ in range(3)]
        for end in (ends[1], ends[0]):
            end(DONE)
        await asyncio.sleep(OUTCOME_S / 2)
        ends[2](DONE)
        writes.watch(responses.append)(DONE)
        await asyncio.sleep(2 * OUTCOME_S)
        assert responses == [DONE] * 4

    run(main())


def test_a_write_without_an_outcome_gets_503_once_and_others_are_refused_until_it_is_known() -> None:
    async def main() -> None:
        writes, first, later = PendingWrites(), list[Response](), list[Response]()
        end_first = writes.watch(first.append)
        await asyncio.sleep(OUTCOME_S - 1)
        end_later = writes.watch(later.append)
        assert not first
        await asyncio.sleep(2)
        assert [(response.status, dict(response.headers)["retry-after"]) for response in first] == [(503, "1")]
        assert b"outcome-pending" in b"".join(first[0].body)
        assert not later
        with pytest.raises(UnavailableError, match="not known yet"):
            writes.watch(later.append)
        end_later(DONE)  # it is still in time
        assert later == [DONE]
        with pytest.raises(UnavailableError):
            writes.watch(later.append)
        end_first(DONE)
        assert len(first) == 1
        writes.watch(later.append)(DONE)
        assert later == [DONE, DONE]

    run(main())
