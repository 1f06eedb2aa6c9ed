"""Appends the shop's events to their streams at a given rate, in a separate thread."""

from __future__ import annotations

import threading
import time

from headwater import limits
from headwater.client import Client
from headwater.demo.delivery import Message, UnreliableDelivery
from headwater.demo.shop import STREAMS, Shop


class Feeder:
    def __init__(self, client: Client, shop: Shop, delivery: UnreliableDelivery, per_second: float) -> None:
        self._producers = {path: client.stream(path).producer() for path in STREAMS.values()}
        self._shop = shop
        self._per_second = per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-feeder", daemon=True)
        self.delivery = delivery
        self.fed = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until all events, including late ones, are stored."""
        self.halt()
        for message in self.delivery.rest():
            self._send(message)
        for producer in self._producers.values():
            producer.close(timeout_s=limits.DEMO_STOP_S)
        self.check()

    def halt(self) -> None:
        """Stop appending, without waiting."""
        self._stopping.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that stopped the thread, if there is one."""
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        occasions = self._shop.events()
        started_s = time.monotonic()
        try:
            while True:
                due = (time.monotonic() - started_s) * self._per_second + 1
                while self.fed < due and not self._stopping.is_set():
                    for message in self.delivery.deliver(next(occasions)):
                        self._send(message)
                if self._stopping.wait(limits.DEMO_FEED_EVERY_S):
                    return
        except Exception as error:  # noqa: BLE001 - raised by `check` and `stop`
            self.failure = error

    def _send(self, message: Message) -> None:
        path, event = message
        self._producers[path].append(event)
        self.fed += 1
