"""Count the instructions of a durable append: `python -m bench.instructions [TREE] [--runs 3] [--streams 64]`.

Processor time on a busy or virtual machine varies by a tenth and more; instructions do not. The server runs under
valgrind (callgrind), and is counted while 64 connections send appends of 100 bytes together. Only instructions of the
process count, not those of the kernel. The data is in memory (/dev/shm), so that each sync is as fast as the next.
`--streams` has the connections append to so many streams in turn. The time of an append increases more with the number
of streams than its instructions, because what they read is not in the processor's cache.

With TREE, a checkout of another version, both are counted, and the command fails if this one takes more than
`--at-most` times as many.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.load import create_streams, request
from bench.servers import ROOT, Server

CONNECTIONS = 64
WARM_ROUNDS, ROUNDS = 100, 60
BODY = b'{"pad":"' + b"x" * 90 + b'"}'
_COUNTED = re.compile(r"Collected : (\d+)")


async def _append(server: Server, names: list[str]) -> None:
    """Append over all connections at once, to the streams in turn, and wait for all answers, again and again."""
    pairs = [await asyncio.open_connection(server.host, server.port) for _ in range(CONNECTIONS)]
    turns = itertools.cycle(names)
    for number in range(WARM_ROUNDS + ROUNDS):
        if number == WARM_ROUNDS:
            _control(server, "on")
        for _, writer in pairs:
            writer.write(request("POST", server, next(turns), BODY))
        for reader, _ in pairs:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 204"):
                raise RuntimeError(f"append failed: {head!r}")
    _control(server, "off")
    for _, writer in pairs:
        writer.close()


def _control(server: Server, state: str) -> None:
    """Begin or stop to count."""
    subprocess.run(["callgrind_control", "-i", state, str(server.pid)], stdout=subprocess.DEVNULL, check=True)


def per_append(tree: Path, profile: Path | None = None, streams: int = CONNECTIONS) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        out = profile or Path(directory, "out")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command += [sys.executable, "-m", "headwater", "serve", "--port", "0", "--data-dir", f"{directory}/data"]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        if process.stdout is None or process.stderr is None:
            raise RuntimeError("no output to read from")
        line = process.stdout.readline()
        address = re.search(r"http://([^:/]+):(\d+)", line)
        if address is None:
            raise RuntimeError(f"the server did not start: {line}{process.stderr.read()}")
        server = Server("headwater", address[1], int(address[2]), process.pid)
        names = [f"counted/{number}" for number in range(streams)]
        create_streams(server, names)
        asyncio.run(_append(server, names))
        process.send_signal(signal.SIGTERM)
        counted = _COUNTED.search(process.communicate(timeout=120)[1])
    if counted is None:
        raise RuntimeError("valgrind printed no count")
    return int(counted[1]) / (ROUNDS * CONNECTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="write what callgrind found to this file")
    parser.add_argument("--streams", type=int, default=CONNECTIONS)
    parser.add_argument("--at-most", type=float, default=0.85)
    arguments = parser.parse_args()
    trees = [ROOT] if arguments.tree is None else [ROOT, arguments.tree.resolve()]
    counted: dict[Path, list[float]] = {tree: [] for tree in trees}
    for _ in range(arguments.runs):
        for tree in trees:
            counted[tree].append(per_append(tree, arguments.profile, arguments.streams))
            print(f"{counted[tree][-1]:>10,.0f} instructions an append  {tree}", flush=True)
    if len(trees) > 1:
        ours, theirs = (statistics.median(counted[tree]) for tree in trees)
        print(f"{ours / theirs:.3f} of the other version")
        if ours / theirs > arguments.at_most:
            sys.exit(f"the goal is at most {arguments.at_most}")


if __name__ == "__main__":
    main()
