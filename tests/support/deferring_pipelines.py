"""Exactly-once pipelines with a processor that defers records to the next transaction."""

from typing import Any

import trio
from conduit_connectors import memory

from conduit_py import (
    Defer,
    Destination,
    Pipeline,
    Record,
    Source,
    State,
    processor,
    sdk,
)
from conduit_py.store.memory import MemoryStore


def numbers(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, first + count)]


@processor(state=True, defers=True)
def by_tens(record: Record, state: State) -> Record:
    """Has every multiple of ten begin a transaction, and remembers what it has seen, in order."""
    state.put("tried", state.get("tried", 0) + 1)
    record.metadata["tries"] = record.metadata.get("tries", "") + "x"
    if record.payload["n"] % 10 == 0 and not state.first:
        raise Defer
    state.put("seen", [*state.get("seen", []), record.payload["n"]])
    return record


def pipeline(
    *destinations: sdk.DestinationConnector[Any], sources: Any = None, processors: Any = (), **more: Any
) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=numbers(35)))] if sources is None else sources,
        processors=processors or [by_tens],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(destinations)],
        delivery="exactly_once",
        **more,
    )


async def read_kept(store: MemoryStore, node: str = "by_tens") -> dict[str, Any]:
    """The state of a processor, by what is durable of it."""
    state = State()
    claim = await store.claim("p")
    values = {key.decode().split("\0")[1]: value for key, value in await claim.scan() if key.startswith(node.encode())}
    state.load(values, claim.seen)
    return dict(state.scan())


@processor
async def passing(record: Record) -> Record:
    await trio.sleep(0.001)
    return record


@processor(state=True)
def summed(record: Record, state: State) -> Record:
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    return record
