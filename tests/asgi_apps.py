"""ASGI apps for the servers under test."""

from __future__ import annotations

from fastapi import FastAPI

from headwater.limits import Limits
from headwater.server.asgi import App

app = App(limits=Limits(long_poll_s=2, notify_retry_s=0.1), development=True)

mounted = FastAPI()
mounted.mount("/streams", App(limits=Limits(long_poll_s=2, notify_retry_s=0.1), development=True))
