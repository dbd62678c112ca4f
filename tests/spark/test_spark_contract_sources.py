"""Sources, promised of both engines: those that can be split and those that cannot, with an end and without."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from conduit_connectors import file, generator, memory
from engine_world import World

from conduit_py import pipeline as p
from conduit_py import sdk
from conduit_py.record import Record
from conduit_py.sdk.source import EndOfSource
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

SECONDS_MAX = 300.0


def as_list(*numbers: int, **more: Any) -> memory.Source:
    return memory.Source(records=[{"n": n} for n in numbers], **more)


@pytest.mark.parametrize("kind", ["list", "generated", "paced", "csv"])
async def test_sources_of_every_kind_are_read_to_their_end(world: World, kind: str) -> None:
    """Split by executors, or read by the driver: a list, a source with a pace, and CSV."""
    csv = world.folder / "in.csv"
    csv.write_text("id\n" + "".join(f"{n}\n" for n in range(200)))
    sources: dict[str, sdk.SourceConnector[Any]] = {
        "list": memory.Source(records=[{"id": n} for n in range(200)]),
        "generated": generator.Source(count=200, seed=1),
        "paced": generator.Source(count=200, seed=1, rate=5000),
        "csv": file.Source(path=csv, format="csv"),
    }

    state = await world.run(world.pipeline(sources=[p.Source("in", sources[kind])]))

    assert state.status is Status.COMPLETED, state.error
    assert [int(row["id"]) for row in world.rows()] == list(range(200))


async def test_a_source_without_an_end_is_delivered_as_it_comes(world: World) -> None:
    records: list[Any] = [{"n": n} for n in range(50)]
    supervisor = world.supervisor(
        world.pipeline(sources=[p.Source("in", memory.Source(records=records, bounded=False))])
    )
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            for count in (50, 51, 151):
                records += [{"n": n} for n in range(len(records), count)]
                while supervisor.progress().acked < count:  # noqa: ASYNC110 - progress is looked at
                    await trio.sleep(0.01)
                assert world.numbers() == list(range(count))
            supervisor.stop()

    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert supervisor.state.error is None


async def test_a_source_that_never_ends_does_not_hold_up_another(world: World) -> None:
    """Fan-in is fair: the records of the small one arrive while the large one goes on."""
    endless = p.Source("endless", generator.Source(count=None, seed=1, rate=20_000))
    small = p.Source("small", as_list(*range(200)))
    supervisor = world.supervisor(world.pipeline(sources=[endless, small]))
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            while _acked(supervisor.progress(), "small") < 200:  # noqa: ASYNC110 - progress is looked at
                await trio.sleep(0.02)
            going_on = supervisor.state.status
            supervisor.stop()

    assert going_on is Status.RUNNING
    assert supervisor.state.status is Status.STOPPED, supervisor.state.error
    assert [row["n"] for row in world.rows() if "n" in row] == list(range(200))


def _acked(progress: Any, node: str) -> int:
    return sum(meter.acked for meter in progress.nodes if meter.node == node)


async def test_a_missing_file_is_reported_before_anything_is_read(world: World) -> None:
    state = await world.run(world.pipeline())

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.node, state.error.message) == ("in", f"there is no file {world.path('in')}")


async def test_an_output_that_cannot_be_written_is_reported_and_nothing_is_lost(world: World) -> None:
    world.write(range(300))
    world.block("out")
    store = MemoryStore()

    state = await world.run(world.pipeline(), store)
    world.unblock("out")
    again = await world.run(world.pipeline(), store)

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.node == "out"
    assert str(world.path("out")) in state.error.message
    assert again.status is Status.COMPLETED, again.error
    assert world.numbers() == list(range(300))


class Recited(sdk.SourceConnector[sdk.Options]):
    """Notes each call, and gives what it was given."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__()
        self.noted: list[Any] = []
        self.records = list(records)

    def fresh(self) -> "Recited":
        return self

    async def on_created(self) -> None:
        self.noted.append("created")

    async def open(self, position: bytes | None) -> None:
        self.noted.append(("open", position))
        self._left = self.records if position is None else []

    async def read(self, n: int) -> list[Record]:
        given, self._left = self._left[:n], self._left[n:]
        if not given:
            raise EndOfSource
        return given

    async def teardown(self) -> None:
        self.noted.append("teardown")


async def test_hooks_are_called_once_and_a_source_is_opened_where_it_was(world: World) -> None:
    store = MemoryStore()
    noted = world.folder / "noted"
    source = Recited([Record.of({"n": n}, position=b"%d" % n) for n in range(10)])

    class Hooked(world.kind):  # type: ignore[misc, name-defined]
        def on_created(self) -> None:
            noted.write_text("created\n")

        def open(self) -> None:
            with noted.open("a") as lines:
                lines.write("open\n")
            super().open()

    for _ in range(2):
        pipeline = world.pipeline(sources=[p.Source("in", source)], destinations=[world.destination(kind=Hooked)])
        state = await world.run(pipeline, store)
        assert state.status is Status.COMPLETED, state.error

    assert source.noted == ["created", ("open", None), "teardown", ("open", b"9"), "teardown"]
    # On Spark also what executors have of a destination is not opened.
    assert noted.read_text().split() == ["created", "open", "open"]
    assert world.numbers() == list(range(10))


@pytest.mark.parametrize(
    ("positions", "rule"),
    [([b"a", b"b", b"b"], "a position twice"), ([b"a", b"", b"b"], "a record without a position")],
)
async def test_a_source_that_breaks_its_contract_is_named_with_the_rule(
    world: World, positions: list[bytes], rule: str
) -> None:
    source = Recited([Record.of({"n": n}, position=position) for n, position in enumerate(positions)])

    state = await world.run(world.pipeline(sources=[p.Source("in", source)]))

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node) == ("contract.broken", "in")
    assert rule in state.error.message
