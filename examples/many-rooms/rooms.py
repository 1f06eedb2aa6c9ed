"""Writes into many rooms: each message has the number of messages before it in its room."""

from __future__ import annotations

import os
import random
import time

from headwater.client import Client, ProducerTuple

ROOMS = int(os.environ.get("ROOMS", "500"))
PER_SECOND = float(os.environ.get("PER_SECOND", "100"))


def main() -> None:
    paths = [f"rooms/{number}" for number in range(ROOMS)]
    with Client(os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")) as client:
        for path in paths:
            client.stream(path).create()
        counts = count(client, paths)
        print(f"{ROOMS} rooms, {sum(counts.values())} messages", flush=True)
        while True:
            path = random.choice(paths)
            number = counts[path]
            # A request that is repeated is stored once: the server knows the producer's sequence number.
            client.stream(path).append({"n": number}, producer=ProducerTuple("rooms.py", 0, number))
            counts[path] += 1
            time.sleep(1 / PER_SECOND)


def count(client: Client, paths: list[str]) -> dict[str, int]:
    """The number of messages in each room, read over one connection."""
    counts = dict.fromkeys(paths, 0)
    with client.follow(dict.fromkeys(paths, "-1")) as follow:
        for batch in follow:
            counts[batch.stream] += len(batch.items)
            if batch.up_to_date:
                follow.drop(batch.stream)
    return counts


if __name__ == "__main__":
    main()
