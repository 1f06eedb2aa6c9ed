"""Feeds the shop's events to a stream at a rate, in a thread of its own."""

from __future__ import annotations

import threading
import time

from headwater import limits
from headwater.client import Client
from headwater.demo.shop import Shop


class Feeder:
    def __init__(self, client: Client, path: str, shop: Shop, per_second: float) -> None:
        self._producer = client.stream(path).producer()
        self._shop = shop
        self._per_second = per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-feeder", daemon=True)
        self.fed = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until all that was fed is stored."""
        self._stopping.set()
        self._thread.join()
        self._producer.close(timeout_s=limits.DEMO_STOP_S)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        occasions = self._shop.events()
        started_s = time.monotonic()
        try:
            while not self._stopping.wait(limits.DEMO_FEED_EVERY_S):
                due = (time.monotonic() - started_s) * self._per_second
                while self.fed < due and not self._stopping.is_set():
                    for event in next(occasions):
                        self._producer.append(event)
                        self.fed += 1
        except Exception as error:  # noqa: BLE001 - whoever stops the feeder hears of it
            self.failure = error
