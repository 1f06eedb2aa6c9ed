"""Change a price a few times a second: one row of the table `prices` for each change."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
import uuid

from headwater.client import Client, ProducerTuple, Put, Report, Retry

GOODS = {"coffee": 8.90, "milk": 1.15, "olive oil": 11.40, "rice": 2.30, "salt": 0.90, "sugar": 1.30, "tea": 4.20}


def tell(report: Report) -> None:
    print(f"{report.error.title}; again in {report.delay_s:.1f} s", flush=True)


def main() -> None:
    url = os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")
    with Client(url, retry=Retry(attempts=1_000, most_s=2), on_error=tell) as client:  # the server may be away
        table = client.table("prices")
        table.create(schema="price", version=1)  # harmless if it is there
        prices = GOODS | {key: float(row.record) for key, row in table.active().items()}
        print("changing prices; Ctrl-C ends it", flush=True)
        changed = list(prices)  # all of them at first, then one at a time
        producer = uuid.uuid4().hex
        for seq in itertools.count():  # requests are numbered: one that is sent again is stored once
            rows = [Put(good, f"{prices[good]:.2f}") for good in changed]
            table.append(rows, producer=ProducerTuple(producer, 0, seq))
            time.sleep(random.uniform(0.1, 0.5))
            changed = [random.choice(list(prices))]
            prices[changed[0]] = max(0.10, prices[changed[0]] * random.uniform(0.95, 1.05))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
