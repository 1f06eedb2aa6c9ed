"""Seats of a theatre: a FastAPI app whose database is a stream.

Reads are answered from the current state in memory, which follows the stream. Writes append events. Any number of these
apps can run side by side on one stream: each sees what the others write, and no seat is booked twice.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from headwater.client import AsyncClient, ProducerTuple
from headwater.errors import TailMovedError
from headwater.state import AsyncStreamDB, ChangeEvent, Collection, define_state


class Seat(BaseModel):
    id: str
    guest: str


class Booking(BaseModel):
    guest: str


SEATS = {f"{row}{number}" for row in "ABC" for number in range(1, 6)}
booked = Collection("seat", Seat, indexes=("guest",))
client = AsyncClient(os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437"))
stream = client.stream("theatre/seats")
db: AsyncStreamDB


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    global db
    await stream.create()  # harmless if it is there
    async with client, AsyncStreamDB(stream, define_state({"booked": booked})) as db:
        await db.preload()
        yield


app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)  # whose pages would load scripts from a CDN


@app.get("/seats")
async def list_seats(guest: str | None = None) -> dict[str, str | None]:
    """All seats and who has booked them; those of one guest by the index."""
    seats = db.table(booked)
    if guest is not None:
        return {name: seat.guest for name, seat in seats.by(guest=guest).items()}
    return {name: seats[name].guest if name in seats else None for name in sorted(SEATS)}


@app.put("/seats/{name}", status_code=201)
async def book(name: str, booking: Booking) -> Seat:
    if name not in SEATS:
        raise HTTPException(404, "there is no such seat")
    seat = Seat(id=name, guest=booking.guest)
    while True:
        offset = db.offset  # of the state that the next line looks at
        if name in db.table(booked):
            raise HTTPException(409, "this seat is taken")
        txid = uuid.uuid4().hex
        if await append_at(offset, booked.insert(seat, txid=txid), txid):
            return seat


@app.delete("/seats/{name}", status_code=204)
async def give_back(name: str) -> None:
    while True:
        offset = db.offset
        if name not in db.table(booked):
            raise HTTPException(404, "this seat is not booked")
        txid = uuid.uuid4().hex
        if await append_at(offset, booked.delete(key=name, txid=txid), txid):
            return


async def append_at(offset: str, event: ChangeEvent[Any], txid: str) -> bool:
    """Append an event if the stream still ends where it was decided on, and wait until it is in our own state.

    False if somebody else appended first; by then that is in our state, so decide again.
    """
    try:
        # As a producer's first request it may be sent again if an answer is lost, and is stored once.
        await stream.append(event, if_tail=offset, producer=ProducerTuple(txid, 0, 0))
    except TailMovedError as moved:
        async with asyncio.timeout(10):
            while db.offset < moved.offset:
                await asyncio.sleep(0.005)
        return False
    await db.await_txid(txid)
    return True
