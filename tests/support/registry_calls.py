"""How tests of processors with a schema registry call the registry, and put records through the processors."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2
from builders import batch_of

from conduit_py.sdk import Processor


def new_subject() -> str:
    """A subject that no other test uses."""
    return f"subject-{uuid4().hex}"


def register(url: str, subject: str, schema: Any, **more: Any) -> int:
    """Register a schema; return its id."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    answer = httpx2.post(f"{url}/subjects/{subject}/versions", json={"schema": text, **more})
    number: int = answer.raise_for_status().json()["id"]
    return number


def ask(url: str) -> Any:
    return httpx2.get(url).raise_for_status().json()


def require_compatibility(url: str, subject: str, level: str) -> None:
    httpx2.put(f"{url}/config/{subject}", json={"compatibility": level}).raise_for_status()


@asynccontextmanager
async def open_processor(processor: Any) -> AsyncIterator[Any]:
    """A fresh instance of the processor, as the runtime uses it."""
    fresh = processor.fresh()
    assert isinstance(fresh, Processor)
    fresh.open()
    try:
        yield fresh
    finally:
        await fresh.close()  # type: ignore[misc]


async def process(processor: Any, *records: Any) -> list[Any]:
    """The results of a fresh instance for these records, or payloads."""
    async with open_processor(processor) as fresh:
        results: list[Any] = await fresh.process_batch(batch_of(*records))
        return results


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


def id_of(data: Any) -> int:
    assert isinstance(data, bytes)
    return int.from_bytes(data[1:5], "big")
