"""A soak: full load on the durable server for minutes on end, with memory and latency written down as it goes.

python -m bench.soak [--seconds 600] [--out bench/results/soak.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import uvloop

from bench.load import append_load, create_streams
from bench.machine import describe_machine
from bench.servers import Server, headwater

BODY = b'{"pad":"' + b"x" * 90 + b'"}'
CONNECTIONS = 50
STREAMS = 500


async def measure(server: Server, seconds: float, window_s: float) -> list[dict[str, float]]:
    names = [f"soak/{number}" for number in range(STREAMS)]
    create_streams(server, names)
    streams = [names[first::CONNECTIONS] for first in range(CONNECTIONS)]
    windows = []
    started_s = time.monotonic()
    while time.monotonic() - started_s < seconds:
        result = await append_load(server, streams, BODY, window_s)
        windows.append(
            {
                "at_s": round(time.monotonic() - started_s, 1),
                "appends_per_s": round(result.per_second),
                "p50_ms": round(result.latency_ms(0.5), 3),
                "p99_ms": round(result.latency_ms(0.99), 3),
                "max_ms": round(result.latency_ms(1.0), 1),
                "memory_mb": round(server.memory_bytes() / 1e6, 1),
            }
        )
        print(json.dumps(windows[-1]), flush=True)
    return windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--out", type=Path, default=Path("bench/results/soak.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, headwater("--data-dir", f"{directory}/data") as server:
        windows = uvloop.run(measure(server, arguments.seconds, arguments.window))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"machine": describe_machine(), "windows": windows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
