"""A FastAPI app that is called when there are new orders: it verifies the webhook, reads the orders and adds them up.

Every order arrives at least once. The app remembers up to which offset it has read each stream, so that an order that
arrives again does not count twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, HTTPException, Request

from headwater.client import AsyncClient
from headwater.errors import HeadwaterError, WebhookSignatureError


class Order(msgspec.Struct):
    sku: str
    pieces: int


ADDRESS = os.environ.get("APP_URL", "http://127.0.0.1:8000")  # where the server reaches this app
client = AsyncClient(os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437"))
verifier = client.webhook_verifier()
pieces: dict[str, int] = {}
read_up_to: dict[str, str] = {}
one_call = asyncio.Lock()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with client:
        subscription = client.subscription("orders-app")
        await subscription.create(pattern="shop/orders/*", webhook_url=f"{ADDRESS}/wake")  # harmless if it exists
        yield


app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)  # whose pages would load scripts from a CDN


@app.post("/wake")
async def receive(request: Request) -> dict[str, bool]:
    try:
        wake = await verifier.verify(request.headers, await request.body())
    except WebhookSignatureError as error:
        raise HTTPException(401, str(error)) from None
    except HeadwaterError as error:  # the keys cannot be fetched: the server will call again
        raise HTTPException(503, str(error)) from None
    claim = client.subscription(wake.subscription_id).answer(wake)
    async with one_call:  # the server calls again if an answer was lost, while the first call may still run
        async for batch in claim.batches(Order, since=read_up_to):
            for order in batch.messages:
                pieces[order.sku] = pieces.get(order.sku, 0) + order.pieces
            read_up_to[batch.stream] = batch.offset
    return {"done": True}  # the server acks the events of this wake


@app.get("/pieces")
async def list_pieces() -> dict[str, int]:
    return pieces
