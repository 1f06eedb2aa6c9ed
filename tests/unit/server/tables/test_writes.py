"""Appends to tables, without an edge: what arrives at one moment is decided in the order in which it came."""

from __future__ import annotations

import asyncio

from headwater.engine import Engine
from headwater.limits import CHANGES_INLINE_BYTES
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
from headwater.server.service import Service
from tests.unit.engine.test_engine import SlowStore, turn, with_engine


def asked(dispatcher: Dispatcher, method: str, body: bytes = b"", **headers: str) -> asyncio.Future[Response]:
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    dispatcher.dispatch(Request(method, "/v1/table/t", "", named, body), answer.set_result)
    return answer


def test_a_producer_can_send_on_while_a_large_body_is_checked() -> None:
    large = b"+\tkey\trecord\n" * (CHANGES_INLINE_BYTES // 13 + 1)

    async def body(engine: Engine) -> None:
        service = Service(engine, engine.limits)
        dispatcher = Dispatcher(service)
        assert (await asked(dispatcher, "PUT")).status == 201
        bodies = (b"+\ta\t1", large, b"+\tb\t2", b"?", b"+\tc\t3")
        sent = [
            asked(dispatcher, "POST", one, producer_id="p", producer_epoch="0", producer_seq=str(min(seq, 3)))
            for seq, one in enumerate(bodies)
        ]
        other = asked(dispatcher, "POST", b"+\tx\ty", producer_id="q", producer_epoch="0", producer_seq="0")
        assert (await other).status == 200
        assert dict((await other).headers)["stp-last-seqno"] == "2"  # nobody else waits
        answers = await asyncio.gather(*sent)
        assert [answer.status for answer in answers] == [200, 200, 200, 400, 200]
        assert not engine.order
        assert not service.tasks

    with_engine(body)


def test_changes_are_not_appended_to_another_table_than_they_were_checked_for() -> None:
    """The table is deleted and created again, with escapes, before the deletion is durable."""
    store = SlowStore()

    async def body(engine: Engine) -> None:
        dispatcher = Dispatcher(Service(engine, engine.limits))
        created = asked(dispatcher, "PUT")
        await turn()
        store.release()
        assert (await created).status == 201
        answers = [asked(dispatcher, "DELETE")]
        await turn()
        answers.append(asked(dispatcher, "PUT", content_type="text/sequence; escape=backslash"))
        await turn()
        answers.append(asked(dispatcher, "POST", b"+\tkey\tno \\escape"))
        for _ in range(3):
            await turn()
            if store.held:
                store.release()
        assert [answer.status for answer in await asyncio.gather(*answers)] == [204, 201, 410]
        assert (await engine.info("\x01t")).last_seqno == 0

    with_engine(body, store)
