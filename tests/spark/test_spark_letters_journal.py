"""Dead letters that are kept here, promised of both engines: what is in them, and what comes of sending them again."""

from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import World

from conduit_py import pipeline as p
from conduit_py.batch import Batch
from conduit_py.pipeline_settings import Delivery
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.stored_letter import LetterFilter, StoredLetter

COUNT = 300


def pipeline(world: World, delivery: Delivery) -> p.Pipeline:
    """Until there is a file `mended`, a processor and a destination refuse some; `rest` is not for multiples of 50."""
    mended = world.folder / "mended"

    def judge(record: Record) -> Record:
        if record.payload["n"] % 50 in (9, 10) and not mended.exists():
            raise ValueError(f"no {record.payload['n']}")
        record.payload["judged"] = True
        return record

    class Picky(world.kind):  # type: ignore[misc, name-defined]
        def write(self, batch: Batch) -> Any:
            refused = self._refused(batch)
            super().write(batch.select([index for index in range(len(batch)) if index not in refused]))
            return refused

        def prepare(self, batch: Batch) -> Any:
            refused = self._refused(batch)
            super().prepare(batch.select([index for index in range(len(batch)) if index not in refused]))
            return refused

        def take(self, pieces: Sequence[bytes]) -> None:
            (world.folder / "taken").touch()
            super().take(pieces)

        def _refused(self, batch: Batch) -> dict[int, str]:
            numbers = [record.payload["n"] for record in batch]
            return {index: "full" for index, n in enumerate(numbers) if n % 100 == 33 and not mended.exists()}

    rest = world.destination("rest", kind=Picky, when=lambda record: record.payload["n"] % 50 != 10, after="judge")
    return p.Pipeline(
        "numbers",
        sources=[world.source()],
        processors=[p.Processor("judge", judge)],
        destinations=[world.destination("all", after="judge"), rest],
        dead_letters=p.DeadLetters("journal"),
        delivery=delivery,
    )


async def read_kept(store: MemoryStore) -> list[StoredLetter]:
    page = await store.letters.page(LetterFilter(), limit=1000)
    return [await store.letters.letter(each.id) for each in reversed(page.letters)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_letters_are_kept_and_sent_again_from_where_they_were_refused(world: World, delivery: Delivery) -> None:
    world.write(range(COUNT))
    with world.path("in").open("a") as lines:
        lines.write("not json\n")
    store = MemoryStore()
    first = await world.run(pipeline(world, delivery), store)
    kept = await read_kept(store)
    unread = next(letter for letter in kept if letter.node == "in")
    await store.letters.edit(unread.id, {"in": Record.of({"n": COUNT})})
    (world.folder / "mended").touch()
    world.write(range(COUNT + 1, COUNT + 100))
    await store.letters.queue("numbers", {letter.id: list(letter.records) for letter in kept})
    supervisor = world.supervisor(pipeline(world, delivery), store)
    second = await supervisor.run()

    assert first.status is second.status is Status.COMPLETED, (first.error, second.error)
    refused = {n: ("judge", f"ValueError: no {n}", {"n": n}) for n in range(COUNT) if n % 50 in (9, 10)}
    refused |= {n: ("rest", "full", {"n": n, "judged": True}) for n in range(33, COUNT, 100)}
    shown = [(each.node, each.error, each.record.payload.after) for each in kept]
    assert shown[:-1] == [refused[n] for n in sorted(refused)]
    assert (unread.node, unread.record.payload.after, unread.source) == ("in", b"not json", "in")
    assert await read_kept(store) == []
    assert sorted(world.numbers("all")) == list(range(COUNT + 100))
    assert sorted(world.numbers("rest")) == [n for n in range(COUNT + 100) if n % 50 != 10]
    assert all(row["judged"] for row in (*world.rows("all"), *world.rows("rest")))
    # Where executors make ready what is written they do so here too.
    assert (world.folder / "taken").exists() == world.prepares
    assert_counted(supervisor.progress().nodes, letters=len(kept), new=99, refused_by_rest=3)


def assert_counted(nodes: Sequence[Any], *, letters: int, new: int, refused_by_rest: int) -> None:
    meters = {meter.node: meter for meter in nodes}
    assert list(meters) == ["in", "judge", "all", "rest", "dead-letters"]
    assert (meters["in"].records, meters["in"].acked) == (new, new)
    assert meters["judge"].records == new + letters - refused_by_rest
    assert meters["all"].records == new + letters - refused_by_rest
    assert (meters["dead-letters"].acked, meters["dead-letters"].refused) == (letters, 0)
