"""`headwater serve` with a ticker on its event loop, which writes the longest time between two ticks to a file.

python -m bench.hostile_server FILE [options of headwater serve]

The file has two numbers for the ticks of 5 ms: the maximum processor time of the loop's thread between two ticks, and
the maximum delay of a tick.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headwater import cli
from headwater.server import serve as serving
from headwater.server.fencing import Fence
from headwater.server.settings import Loaded, Settings
from headwater.store.contract import Store

TICK_S = 0.005
STALL = struct.Struct("dd")


async def tick(file: Path) -> None:
    worst_cpu_s = worst_s = 0.0
    with file.open("r+b", buffering=0) as stall:
        while True:
            cpu_s, at_s = time.thread_time(), time.monotonic()
            await asyncio.sleep(TICK_S)
            held_cpu_s, held_s = time.thread_time() - cpu_s, time.monotonic() - at_s - TICK_S
            if held_cpu_s > worst_cpu_s or held_s > worst_s:
                worst_cpu_s, worst_s = max(worst_cpu_s, held_cpu_s), max(worst_s, held_s)
                stall.seek(0)
                stall.write(STALL.pack(worst_cpu_s, worst_s))


def main() -> None:
    file = Path(sys.argv.pop(1))
    file.write_bytes(STALL.pack(0, 0))
    serve_store = serving.serve_store

    async def watched(
        store: Store,
        settings: Settings,
        ready: Callable[[str], None],
        sockets: Sequence[socket.socket] = (),
        fence: Fence | None = None,
        loaded: Loaded | None = None,
        worker: int = 0,
    ) -> int:
        ticking: list[asyncio.Task[None]] = []

        def ready_and_ticking(url: str) -> None:
            ticking.append(asyncio.get_running_loop().create_task(tick(file)))
            ready(url)

        return await serve_store(store, settings, ready_and_ticking, sockets, fence, loaded, worker)

    serving.serve_store = watched
    sys.argv = ["headwater", "serve", *sys.argv[1:]]
    cli.main()


if __name__ == "__main__":
    main()
