"""ASGI apps for the servers under test."""

from __future__ import annotations

import json
import os

from fastapi import FastAPI

from headwater.limits import Limits
from headwater.server.asgi import App
from tests.edges import AUTH

_given = json.loads(os.environ.get("HEADWATER_TEST_LIMITS", "{}"))

app = App(
    limits=Limits(**{"long_poll_s": 2, "notify_retry_s": 0.1, **_given}),
    development=True,
    auth=os.environ.get(AUTH),
    allow_origins=["https://app.example"] if AUTH in os.environ else (),
)

mounted = FastAPI()
mounted.mount("/streams", App(limits=Limits(long_poll_s=2, notify_retry_s=0.1), development=True))
