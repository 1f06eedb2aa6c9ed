"""A real server that is killed and started again, and producers that retry what they append."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.waiting import LIMIT_S

TEXT = {"content-type": "application/json"}


class Life:
    """A server process on a fixed port."""

    def __init__(self, directory: Path, port: int) -> None:
        command = [sys.executable, "-m", "headwater", "serve", "--data-dir", str(directory), "--port", str(port)]
        limits = ("segment_bytes=300000", "fold_idle_s=0.2")
        self.process = subprocess.Popen(
            [*command, *(word for limit in limits for word in ("--limit", limit))], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert "http://" in self.process.stdout.readline(), "the server did not restart"

    def end(self, number: signal.Signals) -> int:
        assert self.process.stdout is not None
        os.kill(self.process.pid, number)
        code = self.process.wait(LIMIT_S)
        self.process.stdout.close()
        return code


class Producer:
    """Appends numbers in order, and repeats each until it is acknowledged."""

    headers = TEXT

    def __init__(self, name: str, stream: int) -> None:
        self.name = name
        self.path = f"/kill/{stream}"
        self.acknowledged = 0

    def body(self) -> str:
        return f'{{"from":"{self.name}","n":{self.acknowledged},"pad":"{"x" * 200}"}}'

    async def run(self, client: httpx.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._append(client)

    async def _append(self, client: httpx.AsyncClient) -> None:
        """Retry one message until there is a response, also after the stop, because it may have been stored."""
        headers = {"producer-id": self.name, "producer-epoch": "0", "producer-seq": str(self.acknowledged)}
        while True:
            try:
                answer = await client.post(self.path, headers={**self.headers, **headers}, content=self.body())
            except httpx.TransportError:
                await asyncio.sleep(0.02)
                continue
            if answer.status_code in (200, 204):
                self.acknowledged += 1
                return
            assert answer.status_code == 503, answer.text
