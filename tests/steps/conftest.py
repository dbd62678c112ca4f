"""A bench for graphs of steps: runs one until its queues hold so many messages, and shows what the logs say."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from conduit_py.steps.attempt_log import Choice, Decided, Entry, PositionSnapshot, Sent, Takeover, decode_entry
from conduit_py.steps.graph import StepGraph, open_steps
from conduit_py.steps.queue import Queues, Tailer
from conduit_py.steps.step import Message, Step


class Bench:
    """Queues in memory that outlive the graphs which run on them, as a disk outlives processes."""

    def __init__(self) -> None:
        self.queues = Queues()

    @asynccontextmanager
    async def run(self, steps: Sequence[Step], *, id: str = "g", **options: Any) -> AsyncIterator[StepGraph]:
        """A graph that has been started; a hang fails."""
        with trio.fail_after(300):
            async with open_steps(id, steps, self.queues, **options) as graph:
                await graph.start()
                yield graph

    async def wait_for_messages(self, queue: str, count: int) -> list[Message]:
        """The messages of a queue, once there are so many."""
        tailer = Tailer(await self.queues.open(queue))
        found: list[Message] = []
        while len(found) < count:
            await tailer.wait()
            read = await tailer.read()
            assert read is not None
            found.append(read.message)
        return found

    async def all(self, queue: str) -> list[Any]:
        """What the messages of a queue have as their x."""
        return [message["x"] for message in await (await self.queues.open(queue)).messages()]

    async def attempts(self, uid: str) -> list[str]:
        """The entries of a step's log in the letters of the reference."""
        journal = await self.queues.journal(f"attempts/{uid}")
        entries = [decode_entry(frame.bodies[0]) for frame in reversed(await journal.last(1000))]
        return [_letter(entry) for entry in entries if not isinstance(entry, Takeover)]

    async def wait_for_log(self, uid: str, count: int) -> list[str]:
        """The entries of a step's log, once there are so many."""
        journal = await self.queues.journal(f"attempts/{uid}")
        while len(found := await self.attempts(uid)) < count:
            async for _ in journal.read((await journal.barrier()).end, block=True):
                break
        return found


def _letter(entry: Entry) -> str:
    if isinstance(entry, Choice):
        return f"A({entry.queue})"
    if isinstance(entry, Sent):
        return "E" if entry.error else "O"
    return "S" if isinstance(entry, PositionSnapshot) else "D" if isinstance(entry, Decided) else "N"


@pytest.fixture
def bench() -> Bench:
    return Bench()
