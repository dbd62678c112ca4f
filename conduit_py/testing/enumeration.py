"""Crash enumeration: an exactly-once pipeline killed at every durable operation, once and twice, and haunted.

Every scenario is a world of its own under virtual time. A zombie is a run that is frozen at one of its
durable operations, as a paused machine is, and goes on from there after another run has taken over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import TypeAlias, TypeVar

import trio

from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.store.store import Store
from conduit_py.stream.run import Ending, How, Run
from conduit_py.testing.fault_injection import FaultPoint, FaultyRun
from conduit_py.testing.simulation import simulate
from conduit_py.testing.transaction_world import TransactionWorld

MakeTransactions: TypeAlias = Callable[[Graph, Store], CommitTogether]
MakeWorld: TypeAlias = Callable[[], TransactionWorld]
T = TypeVar("T")


@dataclass
class Report:
    """How many scenarios were tried, and those in which a promise was broken, by name."""

    scenarios: int = 0
    broken: dict[str, list[str]] = field(default_factory=dict)

    def note(self, scenario: str, violations: list[str]) -> None:
        self.scenarios += 1
        if violations:
            self.broken[scenario] = violations


class Enumeration:
    """Tries every way to be killed or haunted in worlds that `make_world` makes, all alike.

    `make` makes the transactions of a run: a test of the harness gives one that lacks something. Of the pairs of
    moments one in `every` is tried; with `only_one` none after the first in which a promise was broken.
    """

    def __init__(
        self, make_world: MakeWorld, make: MakeTransactions = CommitTogether, *, every: int = 1, only_one: bool = False
    ) -> None:
        self._make_world = make_world
        self._make = make
        self._every = every
        self._only_one = only_one
        self.report = Report()

    def killed_once(self) -> Report:
        """Killed right before and right after each operation, then run to the end."""
        for point in self._points():
            self._try(f"killed {_said(point)}", self._killed, [point])
        return self.report

    def killed_twice(self) -> Report:
        """Killed once, and again at each operation of the run that recovers."""
        points = list(self._points())
        seconds = [point for point in points if point.when == "after"]
        for first, second in self._chosen(product(points, seconds)):
            self._try(f"killed {_said(first)} and then {_said(second)}", self._killed, [first, second])
        return self.report

    def haunted(self) -> Report:
        """Frozen at one operation; thawed before each operation of the run that took over, and after its end.

        The first operation is the claim: who is frozen before that has not begun yet.
        """
        points = [point for point in self._points() if point.when == "before"]
        for frozen, until in self._chosen(product(points[1:], [*points, None])):
            name = f"frozen {_said(frozen)}, thawed {_said(until) if until else 'at the end'} of its successor"
            self._try(name, self._haunted, frozen, until)
        return self.report

    def _chosen(self, pairs: "Iterator[tuple[FaultPoint, T]]") -> "Iterator[tuple[FaultPoint, T]]":
        return islice(pairs, 0, None, self._every)

    def _points(self) -> Iterator[FaultPoint]:
        world = self._make_world()
        run = FaultyRun()
        simulate(self._live, world, run)
        for operation in range(len(run.operations)):
            yield FaultPoint(operation, "before")
            yield FaultPoint(operation, "after")

    def _try(self, name: str, scenario: Callable[..., object], *args: object) -> None:
        if self._only_one and self.report.broken:
            return
        world = self._make_world()
        simulate(scenario, world, *args, seconds=600)  # type: ignore[arg-type]
        self.report.note(name, world.violations)

    async def _killed(self, world: TransactionWorld, points: list[FaultPoint]) -> None:
        for point in points:
            await self._live(world, FaultyRun(killed_at=point))
        await self._finish(world)

    async def _haunted(self, world: TransactionWorld, frozen: FaultPoint, until: FaultPoint | None) -> None:
        zombie, successor = FaultyRun(frozen_at=frozen), FaultyRun(frozen_at=until)
        ended = trio.Event()

        async def take_over() -> None:
            ending = await self._live(world, successor)
            if ending is not None and ending.how is not How.COMPLETED:
                world.violations.append(f"the zombie made its successor fail: {ending.error}")
            successor.frozen.set()
            ended.set()

        async with trio.open_nursery() as nursery:
            haunting = trio.Event()

            async def haunt() -> None:
                await self._live(world, zombie)
                zombie.frozen.set()
                haunting.set()

            nursery.start_soon(haunt)
            await zombie.frozen.wait()
            nursery.start_soon(take_over)
            await successor.frozen.wait()
            zombie.thawed.set()
            await haunting.wait()
            successor.thawed.set()
            await ended.wait()
        await self._finish(world)

    async def _finish(self, world: TransactionWorld) -> None:
        """Run to the end, unharmed: what a crash left must not keep the pipeline from completing."""
        ending = await self._live(world, FaultyRun())
        if ending is None or ending.how is not How.COMPLETED:
            world.violations.append(f"the pipeline does not recover: {ending}")
        await world.check()

    async def _live(self, world: TransactionWorld, mortal: FaultyRun) -> Ending | None:
        graph = compile_pipeline(world.pipeline())
        endings: list[Ending] = []

        async def work() -> None:
            run = Run(graph, world.store, self._make(graph, world.store))
            endings.append(await run.execute())

        mortal.on_operation = world.look
        await mortal.live(work)
        return endings[0] if endings else None


def _said(point: FaultPoint) -> str:
    return f"{point.when} operation {point.operation}"
