"""A FastAPI application that runs a pipeline for as long as it serves. Start it with `uvicorn app:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conduit_connectors import file
from fastapi import FastAPI

import conduit_py
from conduit_py import Pipeline, Record, processor


@processor
def in_cents(record: Record) -> Record:
    record.payload["cents"] = round(record.payload["amount"] * 100)
    return record


pipeline = Pipeline(
    "orders",
    sources={"web": file.Source(path="orders.jsonl", format="json", tail=True)},
    processors=[in_cents],
    destinations={"lake": file.Destination(path="lake.jsonl", format="json")},
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with conduit_py.running(pipeline, state="state") as running:
        app.state.running = running
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/orders/status")
async def status() -> dict[str, str | int]:
    running: conduit_py.RunningPipeline = app.state.running
    counts = await running.counts()
    return {"status": running.status, "read": counts.read, "acked": counts.acked, "dead_letters": counts.dead_letters}
