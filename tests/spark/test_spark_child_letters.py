"""Dead letters of a pipeline in a process of its own: the server keeps them, and has them sent again. Without Java."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, generator

from conduit_py import DeadLetters, Destination, Pipeline, Retention, Source, processor
from conduit_py.child.supervisor import ChildSupervisor
from conduit_py.pipeline_settings import Delivery
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store
from conduit_py.store.stored_letter import LetterFilter, StoredLetter


def pipeline(folder: Path, *, delivery: Delivery = "exactly_once", retention: Retention | None = None) -> Pipeline:
    """Numbers, of which every tenth below 50 is refused until there is a file `mended`."""
    mended = folder / "mended"

    @processor
    def judged(record: Any) -> Any:
        n = record.payload["id"]
        if n < 50 and n % 10 == 3 and not mended.exists():
            raise ValueError(f"{n} is no good")
        return record

    return Pipeline(
        "made",
        sources=[Source("made", generator.Source(rate=400, fields={"id": "index"}))],
        processors=[judged],
        destinations=[Destination("kept", file.Destination(path=folder / "kept.jsonl", format="json"))],
        dead_letters=DeadLetters("journal", retention=retention),
        delivery=delivery,
    )


async def letters(store: Store) -> list[StoredLetter]:
    found = (await store.letters.page(LetterFilter())).letters
    return [await store.letters.letter(each.id) for each in reversed(found)]


async def until(wanted: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(300):
        while not await wanted():  # noqa: ASYNC110 - another process changes it
            await trio.sleep(0.02)


async def wait_for_refusals(store: Store, count: int = 5) -> list[StoredLetter]:
    async def enough() -> bool:
        # Not `letters`: one may be forgotten between the list and the look at it.
        return len((await store.letters.page(LetterFilter())).letters) == count

    await until(enough)
    return await letters(store)


def numbers(folder: Path) -> list[int]:
    return [json.loads(line)["id"] for line in (folder / "kept.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_letters_are_kept_listed_and_sent_again_while_it_runs(tmp_path: Path, delivery: Delivery) -> None:
    store = MemoryStore()
    supervisor = ChildSupervisor(pipeline(tmp_path, delivery=delivery), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        kept = await wait_for_refusals(store)
        await store.letters.queue("made", {kept[0].id: ["judged"]})

        async def is_refused_again() -> bool:
            return (await store.letters.letter(kept[0].id)).attempts == 2

        await until(is_refused_again)
        again = await store.letters.letter(kept[0].id)
        (tmp_path / "mended").touch()
        await store.letters.queue("made", {each.id: ["judged"] for each in kept})

        async def gone() -> bool:
            # Not `letters`: one may be delivered between the list and the look at it.
            return not (await store.letters.page(LetterFilter())).letters

        await until(gone)
        supervisor.stop()

    assert [each.record.payload["id"] for each in kept] == [3, 13, 23, 33, 43]
    assert [(each.node, each.error, each.position) for each in kept[:1]] == [
        ("judged", "ValueError: 3 is no good", b"generator:1:3")
    ]
    assert [(each.attempt, each.error) for each in again.history] == [(n, "ValueError: 3 is no good") for n in (1, 2)]
    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert sorted(numbers(tmp_path)) == list(range(max(numbers(tmp_path)) + 1))
    assert numbers(tmp_path) != sorted(numbers(tmp_path))
    [meter] = [each for each in supervisor.progress().nodes if each.node == "dead-letters"]
    assert (meter.records, meter.acked, meter.refused) == (5, 5, 1)


async def test_letters_that_are_queued_or_discarded_while_it_is_stopped_are_so_when_it_starts(tmp_path: Path) -> None:
    store = MemoryStore()
    for turn in range(2):
        supervisor = ChildSupervisor(pipeline(tmp_path), store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            kept = await wait_for_refusals(store, 0 if turn else 5)
            supervisor.stop()
        if not turn:
            (tmp_path / "mended").touch()
            await store.letters.queue("made", {each.id: ["judged"] for each in kept[1:]})
            await store.letters.discard(LetterFilter(ids=(kept[0].id,)))

    assert sorted(numbers(tmp_path)) == [n for n in range(max(numbers(tmp_path)) + 1) if n != 3]


async def test_old_letters_are_forgotten_as_the_retention_says(tmp_path: Path) -> None:
    store = MemoryStore()
    for count in (5, 2):
        made = pipeline(tmp_path, retention=Retention(count_max=2) if count == 2 else None)
        supervisor = ChildSupervisor(made, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            kept = await wait_for_refusals(store, count)
            supervisor.stop()

    assert [each.record.payload["id"] for each in kept] == [33, 43]
