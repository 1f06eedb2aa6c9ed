"""A connection whose request was refused for now is held back: its next request waits for the pause."""

from __future__ import annotations

import asyncio

from headwater.limits import REFUSED_PAUSE_S
from headwater.server.http import Response
from tests import virtual_time
from tests.unit.server.rig import Rig

POST = b"POST /a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx"


def test_the_next_request_of_a_refused_connection_waits() -> None:
    async def main() -> None:
        for status, is_held_back in ((429, True), (503, True), (400, False), (204, False)):
            rig = Rig()
            rig.send(POST)
            rig.respond(Response(status))
            rig.send(POST)
            assert len(rig.requests) == (1 if is_held_back else 2)
            await asyncio.sleep(REFUSED_PAUSE_S * 0.99)
            assert len(rig.requests) == (1 if is_held_back else 2)
            await asyncio.sleep(REFUSED_PAUSE_S * 0.52)  # there is a jitter of half a pause
            assert len(rig.requests) == 2

    virtual_time.run(main())
