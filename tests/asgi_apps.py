"""ASGI apps for the servers under test."""

from __future__ import annotations

import json
import os

from fastapi import FastAPI

from headwater.limits import Limits
from headwater.server.asgi import App
from tests.edges import AUTH, LIMITS

_limits = Limits(**json.loads(os.environ.get(LIMITS, "{}")))

app = App(
    limits=_limits,
    development=AUTH not in os.environ,
    auth=os.environ.get(AUTH),
    allow_origins=["https://app.example"] if AUTH in os.environ else (),
)

mounted = FastAPI()
mounted.mount("/streams", App(limits=_limits, development=True))
