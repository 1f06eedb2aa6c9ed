"""Change a price a few times a second: one row of the table `prices` for each change."""

from __future__ import annotations

import contextlib
import os
import random
import time

from headwater.client import Client, Put

GOODS = {"coffee": 8.90, "milk": 1.15, "olive oil": 11.40, "rice": 2.30, "salt": 0.90, "sugar": 1.30, "tea": 4.20}


def main() -> None:
    with Client(os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")) as client:
        table = client.table("prices")
        table.create(schema="price", version=1)  # harmless if it is there
        prices = GOODS | {key: float(row.record) for key, row in table.active().items()}
        table.append_all([Put(good, f"{price:.2f}") for good, price in prices.items()])
        print("changing prices; Ctrl-C ends it", flush=True)
        while True:
            good = random.choice(list(prices))
            prices[good] = max(0.10, prices[good] * random.uniform(0.95, 1.05))
            table.append_all([Put(good, f"{prices[good]:.2f}")])  # numbered: a request that is retried is stored once
            time.sleep(random.uniform(0.1, 0.5))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
