"""A pool of workers: ten processes share a hundred streams, and are killed and added while events arrive.

Each stream is an account with its own subscription, and all subscriptions wake through one stream. The workers are told
of nothing else: a worker that starts finds work by itself, and the work of one that is killed is taken over.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from multiprocessing.connection import Connection, wait
from typing import Any

from headwater.client import Client, WorkBatch

URL = os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")
WAKES = "pool/wakes"
LEASE_S = 2.0


def work(name: str, results: Connection) -> None:
    """What a worker process does: it sends what it has processed to the main process."""

    def process(batch: WorkBatch[Any]) -> None:
        for message in batch.messages:
            results.send_bytes(json.dumps([name, batch.stream, message["number"]]).encode())

    with Client(URL) as client:
        client.worker(WAKES, process, name=name).run(signals=True)


class Pool:
    """The worker processes."""

    def __init__(self) -> None:
        self.results: list[Connection] = []
        self.started = 0
        self._running: list[multiprocessing.process.BaseProcess] = []
        self._context = multiprocessing.get_context("spawn")

    def add(self) -> None:
        self.started += 1
        results, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(f"worker-{self.started}", sender), daemon=True)
        process.start()
        sender.close()
        self.results.append(results)
        self._running.append(process)

    def kill_one(self) -> None:
        process = self._running.pop(random.randrange(len(self._running)))
        process.kill()

    def stop(self) -> None:
        """Stop the workers: each finishes its call, acks it, and releases its claim."""
        for process in self._running:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGTERM)
        for process in self._running:
            process.join()


class Books:
    """What was appended, and what the workers have processed."""

    def __init__(self) -> None:
        self.appended: dict[str, int] = defaultdict(int)
        self.processed: dict[str, set[int]] = defaultdict(set)
        self.repeated = 0
        self.workers: set[str] = set()

    def read(self, pool: Pool) -> None:
        """Take what the workers have sent since the last time."""
        for results in wait(pool.results, timeout=0):
            try:
                worker, stream, number = json.loads(results.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                pool.results.remove(results)  # type: ignore[arg-type]
                continue
            self.workers.add(worker)
            self.repeated += number in self.processed[stream]
            self.processed[stream].add(number)

    @property
    def missing(self) -> int:
        return sum(last - len(self.processed[stream]) for stream, last in self.appended.items())


def prepare(client: Client, streams: int) -> None:
    client.stream(WAKES).create()
    for number in range(streams):
        client.stream(f"pool/accounts/{number}").create()
        account = client.subscription(f"account-{number}")
        account.create(streams=[f"pool/accounts/{number}"], wake_stream=WAKES, lease_s=LEASE_S)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--workers", type=int, default=10)
    options.add_argument("--streams", type=int, default=100)
    options.add_argument("--kill-every", type=float, default=2, help="seconds between two kills")
    arguments = options.parse_args()
    pool, books = Pool(), Books()
    with Client(URL) as client:
        prepare(client, arguments.streams)
        for _ in range(arguments.workers):
            pool.add()
        began_s = time.monotonic()
        next_kill_s, next_line_s, kills = began_s + arguments.kill_every, began_s, 0
        while (now_s := time.monotonic()) < began_s + arguments.seconds or books.missing:
            if now_s < began_s + arguments.seconds:
                stream = f"pool/accounts/{random.randrange(arguments.streams)}"
                books.appended[stream] += 1
                client.stream(stream, content_type="application/json").append({"number": books.appended[stream]})
                if now_s >= next_kill_s:
                    pool.kill_one()
                    pool.add()
                    kills += 1
                    next_kill_s = now_s + arguments.kill_every
            books.read(pool)
            if now_s >= next_line_s:
                print(f"{sum(books.appended.values()):7,} appended, {books.missing:5,} not processed, {kills} killed")
                next_line_s += 2
        pool.stop()
    total = sum(books.appended.values())
    print(f"all {total:,} events were processed by {len(books.workers)} workers, {books.repeated} of them again")


if __name__ == "__main__":
    main()
