"""Delivery, promised of both engines: who is acked when, and what failures repeat, lose or leave alone."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from conduit_connectors import memory
from engine_world import EVERY_WAY, World, kept, lines_of, no_good, sorted_out

from conduit_py import pipeline as p
from conduit_py.backoff import Recovery
from conduit_py.batch import Batch
from conduit_py.errors import TransientError
from conduit_py.pipeline_settings import Delivery, TransactionLimits
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

QUICK = Recovery(delay_seconds=0.01, delay_max_seconds=0.01, retries=3)
SMALL = TransactionLimits(max_records=100)


class Pruning(memory.Source):
    """Keeps the positions it got, and at each time what was in `out` and in the store."""

    noted: list[tuple[Sequence[bytes], int, dict[str, bytes]]]
    world: World
    store: MemoryStore

    def fresh(self) -> "Pruning":
        new = super().fresh()
        new.noted, new.world, new.store = self.noted, self.world, self.store
        return new

    async def ack(self, positions: Sequence[bytes]) -> None:
        self.noted.append((list(positions), len(self.world.rows()), await self.store.positions("numbers")))


@EVERY_WAY
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
async def test_every_position_is_acked_once_in_order_and_not_too_early(world: World, delivery: Delivery) -> None:
    """Also those of filtered and refused records, and, on Spark, of all that came in one part."""
    store = MemoryStore()
    source = Pruning(records=[{"n": n} for n in range(400)])
    source.noted, source.world, source.store = [], world, store
    pipeline = world.pipeline(
        sorted_out,
        sources=[p.Source("in", source, batch_size=50)],
        delivery=delivery,
        transaction=SMALL if delivery == "exactly_once" else None,
        dead_letters=p.DeadLetters("drop") if delivery == "at_most_once" else world.dead_letters(),
    )

    state = await world.run(pipeline, store)

    assert state.status is Status.COMPLETED, state.error
    acked = [position for positions, _, _ in source.noted for position in positions]
    reader = memory.Source(records=[{"n": n} for n in range(400)])
    await reader.open(None)
    assert acked == [record.position for record in await reader.read(400)]
    done = 0
    for positions, written, durable in source.noted:
        done += len(positions)
        assert durable == {"in": positions[-1]}
        if delivery == "at_most_once":
            assert written <= len(kept(range(done)))
        else:
            assert written >= len(kept(range(done)))


def failing(world: World) -> p.Destination:
    """A destination that fails once it was given some records, once for each folder."""
    marker = world.path("out").with_suffix(".failed")

    class Failing(world.kind):  # type: ignore[misc, name-defined]
        count = 0

        def write(self, batch: Batch) -> Any:
            self._fail_once(len(batch))
            return super().write(batch)

        def take(self, pieces: Sequence[bytes]) -> None:
            # Each has the records of a part, more than a hundred.
            self._fail_once(100 * len(pieces))
            super().take(pieces)

        def _fail_once(self, more: int) -> None:
            if self.count >= 250 and not marker.exists():
                marker.touch()
                raise TransientError("the link is down")
            self.count += more

    return world.destination(kind=Failing)


@EVERY_WAY
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
async def test_after_a_transient_error_it_goes_on_as_its_delivery_says(world: World, delivery: Delivery) -> None:
    world.write(range(1000))
    pipeline = world.pipeline(
        sources=[world.source(batch_size=50)],
        destinations=[failing(world)],
        delivery=delivery,
        recovery=QUICK,
        transaction=SMALL if delivery == "exactly_once" else None,
        dead_letters=p.DeadLetters("drop"),
    )
    supervisor = world.supervisor(pipeline)

    state = await supervisor.run()

    assert world.path("out").with_suffix(".failed").exists()
    assert state.status is Status.COMPLETED, state.error
    assert supervisor.progress().recoveries == 1
    times = Counter(world.numbers())
    if delivery == "exactly_once":
        assert world.numbers() == list(range(1000))
    elif delivery == "at_least_once":
        assert list(times) == list(range(1000))
        assert world.numbers()[-1] == 999
    else:
        assert set(times.values()) == {1}
        assert world.numbers() == sorted(times)
        assert 0 < len(times) < 1000


@EVERY_WAY
async def test_exactly_once_commits_output_letters_and_progress_together(world: World) -> None:
    world.write(range(1000))

    state = await world.run(world.pipeline(sorted_out, delivery="exactly_once", transaction=SMALL))

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == kept(range(1000))
    assert world.refused() == no_good(range(1000))


async def test_on_spark_a_transaction_has_whole_parts(world: World) -> None:
    """Where executors make ready what is written, a part is in one transaction however large it is."""
    world.write(range(600))
    folder, sizes = world.folder, world.folder / "sizes"

    class Counting(world.kind):  # type: ignore[misc, name-defined]
        count = 0

        def write(self, batch: Batch) -> Any:
            self.count += len(batch)
            return super().write(batch)

        def take(self, pieces: Sequence[bytes]) -> None:
            self.count += lines_of(folder, pieces).count(b"\n")
            super().take(pieces)

        def stage(self) -> bytes | None:
            with sizes.open("a") as lines:
                lines.write(f"{self.count}\n")
            self.count = 0
            staged: bytes | None = super().stage()
            return staged

    destination = world.destination(kind=Counting)
    source = world.source(batch_size=20)
    state = await world.run(
        world.pipeline(sources=[source], destinations=[destination], delivery="exactly_once", transaction=SMALL)
    )

    assert state.status is Status.COMPLETED, state.error
    staged = [int(line) for line in sizes.read_text().split()]
    assert sum(staged) == 600
    assert max(staged) > 150 if world.prepares else max(staged) <= 100


async def test_a_transaction_that_cannot_be_staged_leaves_all_before_it_committed(world: World) -> None:
    """What is to blame is found by smaller transactions: one record, or on Spark a part that executors made ready."""
    world.write(range(600))
    folder, mended = world.folder, world.folder / "mended"

    class Poisoned(world.kind):  # type: ignore[misc, name-defined]
        poison = False

        def write(self, batch: Batch) -> Any:
            self.poison |= any(record.payload["n"] == 431 for record in batch)
            return super().write(batch)

        def take(self, pieces: Sequence[bytes]) -> None:
            self.poison |= b'"n":431}' in lines_of(folder, pieces)
            super().take(pieces)

        def stage(self) -> bytes | None:
            if self.poison and not mended.exists():
                raise RuntimeError("poisoned")
            staged: bytes | None = super().stage()
            return staged

    store = MemoryStore()
    destination = world.destination(kind=Poisoned)
    pipeline = world.pipeline(destinations=[destination], delivery="exactly_once", transaction=SMALL)
    state = await world.run(pipeline, store)
    before = world.numbers()
    mended.touch()
    again = await world.run(pipeline, store)

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.node, "poisoned" in state.error.message) == ("out", True)
    assert before == list(range(len(before)))
    assert 300 < len(before) < 431 if world.prepares else len(before) == 431
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers() == list(range(600))


async def test_a_pipeline_goes_from_one_engine_to_the_other_and_on_from_where_it_was(worlds: list[World]) -> None:
    store = MemoryStore()
    first = worlds[0]
    for index, world in enumerate([*worlds, *worlds[::-1]]):
        first.write(range(300 * index, 300 * index + 300))
        pipeline = world.pipeline(sorted_out, sources=[first.source()])
        state = await world.run(pipeline, store)
        assert state.status is Status.COMPLETED, state.error

    delivered = [n for world in worlds for n in world.numbers()]
    assert sorted(delivered) == kept(range(2 * 300 * len(worlds)))


@EVERY_WAY
async def test_a_source_goes_on_after_its_last_acked_record_also_within_a_part(world: World) -> None:
    """What stopped it was in the middle of a part: on any engine everything from there on comes, in order."""
    world.write(range(600))
    mended = world.folder / "mended"

    def fragile(record: Record) -> Record:
        if record.payload["n"] == 431 and not mended.exists():
            raise ValueError("not yet")
        return record

    store = MemoryStore()
    first = await world.run(world.pipeline(fragile, dead_letters=p.DeadLetters()), store)
    delivered = world.numbers()
    mended.touch()
    again = await world.run(world.pipeline(fragile, dead_letters=p.DeadLetters()), store)

    assert first.status is Status.DEGRADED
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers()[len(delivered) :] == list(range(431, 600))
