"""Pipelines whose destinations refuse records until they are asked again, and the replay of their dead letters."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import trio

from conduit_py import (
    DeadLetters,
    Destination,
    Pipeline,
    Recovery,
    Source,
    sdk,
)
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, Batch
from conduit_py.status import PipelineState
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter, LetterState, StoredLetter
from conduit_py.testing import EventLog, ScriptedSource

EVERYTHING = LetterFilter()


KEPT = LetterFilter(state=LetterState.KEPT)


PATIENT = Recovery(delay_seconds=1, retries=5)


class Moody(sdk.DestinationConnector[sdk.Options]):
    """Stores numbers and keys; refuses the numbers that are in `hates` at the moment."""

    def __init__(self, hates: set[int], mode: AckMode = AckMode.WRITE) -> None:
        super().__init__()
        self.hates = hates
        self.mode = mode
        self.stored: list[tuple[str, int, bytes]] = []
        self._unflushed: list[tuple[str, int, bytes]] = []
        self._answers: list[sdk.Answer] = []

    @property
    def acks(self) -> AckMode:  # type: ignore[override]
        return self.mode

    async def open(self) -> None:
        self._answered = trio.Event()

    def fresh(self) -> "Moody":
        return self

    async def write(self, batch: Batch) -> dict[int, str]:
        await trio.lowlevel.checkpoint()
        refused = {}
        for index, record in enumerate(batch):
            number = record.payload["n"]
            given = (batch.source, number, batch.delivery_key(index))
            why = f"row {number}: not today" if number in self.hates else None
            if self.acks is AckMode.LATER:
                self._answers.append(sdk.Answer(batch.id(index), why))
                self._answered.set()
            elif why:
                refused[index] = why
            if not why:
                (self._unflushed if self.acks is AckMode.FLUSH else self.stored).append(given)
        return refused

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()
        self.stored += self._unflushed
        self._unflushed.clear()

    async def answers(self) -> Sequence[sdk.Answer]:
        await self._answered.wait()
        self._answered = trio.Event()
        given = list(self._answers)
        self._answers.clear()
        random.shuffle(given)
        return given

    @property
    def numbers(self) -> list[int]:
        return [number for _, number, _ in self.stored]


def made(
    *destinations: Destination,
    records: int = 6,
    bounded: bool = True,
    processors: Sequence[Any] = (),
    log: EventLog | None = None,
    **more: Any,
) -> Pipeline:
    source = ScriptedSource(name="web", records=records, bounded=bounded, log=log or EventLog())
    letters = more.pop("dead_letters", DeadLetters("journal"))
    return Pipeline(
        "p",
        sources=more.pop("sources", [Source("web", source, batch_size=4)]),
        processors=processors,
        destinations=destinations,
        dead_letters=letters,
        **more,
    )


async def run(pipeline: Pipeline, store: MemoryStore) -> PipelineState:
    return await Supervisor(pipeline, store, recovery=PATIENT).run()


async def letters_of(store: MemoryStore, filter: LetterFilter = EVERYTHING) -> list[StoredLetter]:
    page = await store.letters.page(filter, limit=10_000)
    return [await store.letters.letter(summary.id) for summary in reversed(page.letters)]


async def replay(
    store: MemoryStore, *, to: Callable[[StoredLetter], list[str]] = lambda letter: list(letter.records)
) -> int:
    """Queue every letter that is kept."""
    wanted = {letter.id: to(letter) for letter in await letters_of(store, KEPT)}
    return len(await store.letters.queue("p", wanted))
