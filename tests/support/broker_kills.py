"""A pipeline that writes to a broker, which is killed with `kill -9` meanwhile and started again."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import pytest
import trio
from conduit_connectors import file, generator
from waiting import until

import conduit_py
from conduit_py import Destination, Pipeline, Recovery, Source, sdk
from conduit_py.status import Status
from conduit_py.testing.server_process import LoopbackService

COUNT = 200
Delivery = Literal["at_least_once", "exactly_once"]


def writing_to(connector: sdk.DestinationConnector[sdk.Options], delivery: Delivery, *, count: int = COUNT) -> Pipeline:
    """A pipeline that writes numbers for two seconds, and begins again shortly after an error."""
    numbers = generator.Source(count=count, rate=count / 2, fields={"n": "index"})
    return Pipeline(
        "p",
        sources=[Source("made", numbers, batch_size=10)],
        destinations=[Destination("out", connector)],
        delivery=delivery,
        recovery=Recovery(delay_seconds=0.2, delay_max_seconds=1.0),
    )


class ReadNumbers:
    """A pipeline that reads the numbers back from the broker into a file, and what is in it."""

    def __init__(self, connector: sdk.SourceConnector[sdk.Options], folder: Path, delivery: Delivery) -> None:
        self._out = folder / "out.jsonl"
        self.pipeline = Pipeline(
            "reading",
            sources=[Source("in", connector)],
            destinations=[Destination("out", file.Destination(path=self._out, format="lines"))],
            delivery=delivery,
            recovery=Recovery(delay_seconds=0.2, delay_max_seconds=1.0),
        )

    def numbers(self) -> list[int]:
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [msgspec.json.decode(line)["n"] for line in lines]


class Killable(Protocol):
    """A server, or what leads to one."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


async def write_through_a_kill(
    server: Killable,
    pipeline: Pipeline,
    stored: Callable[[], list[int]],
    folder: Path,
    *,
    beside: Pipeline | None = None,
) -> list[int]:
    """Kill the server when a part of the records is stored; return what is stored in the end.

    With a pipeline `beside` it is that one which stores: it reads what the first one writes.
    """
    async with AsyncExitStack() as stack:
        if beside is not None:
            await stack.enter_async_context(conduit_py.running(beside, state=folder / "beside"))
        run = await stack.enter_async_context(conduit_py.running(pipeline, state=folder / "state"))
        await until(lambda: len(stored()) >= 10)
        await trio.to_thread.run_sync(server.kill)
        # So long that a write fails: without it the pipeline might not notice.
        await trio.sleep(0.3)
        await trio.to_thread.run_sync(server.start)
        with trio.move_on_after(600) as waiting:
            outcome = await run.wait()
        if waiting.cancelled_caught:
            said = server.log_tail() if isinstance(server, LoopbackService) else "(it is a relay)"
            pytest.fail(f"the pipeline does not find the server again, which printed last: {said}")
        assert outcome.status is Status.COMPLETED, outcome
        if beside is not None:
            await until(lambda: len(set(stored())) >= COUNT)
    return stored()


def in_first_order(numbers: list[int]) -> list[int]:
    """The numbers without repeats, each where it came first."""
    return list(dict.fromkeys(numbers))
