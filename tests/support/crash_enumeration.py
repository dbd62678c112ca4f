"""Crash enumeration: an exactly-once pipeline killed at every durable operation, once and twice, and frozen there.

Every trial has a scenario of its own, under virtual time. A zombie is a run that is frozen at one of its durable
operations, as on a paused machine. It continues after another run has taken over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from typing import TypeAlias, TypeVar

import trio
from exactly_once_scenario import ExactlyOnceScenario

from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.store.store import Store
from conduit_py.stream.run import Ending, How, Run
from conduit_py.testing.crash import FaultPoint, FaultyRun
from conduit_py.testing.simulation import simulate

MakeTransactions: TypeAlias = Callable[[Graph, Store], CommitTogether]
MakeScenario: TypeAlias = Callable[[], ExactlyOnceScenario]
T = TypeVar("T")


@dataclass
class Report:
    """How many trials there were, and those in which a promise was broken, by name."""

    trials: int = 0
    broken: dict[str, list[str]] = field(default_factory=dict)

    def note(self, trial: str, violations: list[str]) -> None:
        self.trials += 1
        if violations:
            self.broken[trial] = violations


class Enumeration:
    """Tries every way to be killed or frozen in scenarios that `make_scenario` makes, all alike.

    `make` makes the transactions of a run: a test of the harness gives one that lacks something. Of the pairs of
    moments one in `every` is tried; with `only_one` none after the first in which a promise was broken.
    """

    def __init__(
        self,
        make_scenario: MakeScenario,
        make: MakeTransactions = CommitTogether,
        *,
        every: int = 1,
        only_one: bool = False,
    ) -> None:
        self._make_scenario = make_scenario
        self._make = make
        self._every = every
        self._only_one = only_one
        self.report = Report()

    def kill_once(self) -> Report:
        """Killed right before and right after each operation, then run to the end."""
        for point in self._points():
            self._try(f"killed {_describe(point)}", self._kill, [point])
        return self.report

    def kill_twice(self) -> Report:
        """Killed once, and again at each operation of the run that recovers."""
        points = list(self._points())
        seconds = [point for point in points if point.when == "after"]
        for first, second in self._choose(product(points, seconds)):
            self._try(f"killed {_describe(first)} and then {_describe(second)}", self._kill, [first, second])
        return self.report

    def freeze_and_resume(self) -> Report:
        """Frozen at one operation; thawed before each operation of the run that took over, and after its end.

        The first operation is the claim: who is frozen before that has not begun yet.
        """
        points = [point for point in self._points() if point.when == "before"]
        for frozen, until in self._choose(product(points[1:], [*points, None])):
            name = f"frozen {_describe(frozen)}, thawed {_describe(until) if until else 'at the end'} of its successor"
            self._try(name, self._freeze_and_resume, frozen, until)
        return self.report

    def _choose(self, pairs: "Iterator[tuple[FaultPoint, T]]") -> "Iterator[tuple[FaultPoint, T]]":
        return islice(pairs, 0, None, self._every)

    def _points(self) -> Iterator[FaultPoint]:
        scenario = self._make_scenario()
        run = FaultyRun()
        simulate(self._run, scenario, run)
        for operation in range(len(run.operations)):
            yield FaultPoint(operation, "before")
            yield FaultPoint(operation, "after")

    def _try(self, name: str, trial: Callable[..., object], *args: object) -> None:
        if self._only_one and self.report.broken:
            return
        scenario = self._make_scenario()
        simulate(trial, scenario, *args, seconds=600)  # type: ignore[arg-type]
        self.report.note(name, scenario.violations)

    async def _kill(self, scenario: ExactlyOnceScenario, points: list[FaultPoint]) -> None:
        for point in points:
            await self._run(scenario, FaultyRun(killed_at=point))
        await self._finish(scenario)

    async def _freeze_and_resume(
        self, scenario: ExactlyOnceScenario, frozen: FaultPoint, until: FaultPoint | None
    ) -> None:
        zombie, successor = FaultyRun(frozen_at=frozen), FaultyRun(frozen_at=until)
        ended = trio.Event()

        async def take_over() -> None:
            ending = await self._run(scenario, successor)
            if ending is not None and ending.how is not How.COMPLETED:
                scenario.violations.append(f"the zombie made its successor fail: {ending.error}")
            successor.frozen.set()
            ended.set()

        async with trio.open_nursery() as nursery:
            zombie_ended = trio.Event()

            async def run_zombie() -> None:
                await self._run(scenario, zombie)
                zombie.frozen.set()
                zombie_ended.set()

            nursery.start_soon(run_zombie)
            await zombie.frozen.wait()
            nursery.start_soon(take_over)
            await successor.frozen.wait()
            zombie.thawed.set()
            await zombie_ended.wait()
            successor.thawed.set()
            await ended.wait()
        await self._finish(scenario)

    async def _finish(self, scenario: ExactlyOnceScenario) -> None:
        """Run to the end, unharmed: what a crash left must not keep the pipeline from completing."""
        ending = await self._run(scenario, FaultyRun())
        if ending is None or ending.how is not How.COMPLETED:
            scenario.violations.append(f"the pipeline does not recover: {ending}")
        await scenario.check()

    async def _run(self, scenario: ExactlyOnceScenario, faulty: FaultyRun) -> Ending | None:
        graph = compile_pipeline(scenario.pipeline())
        endings: list[Ending] = []

        async def work() -> None:
            run = Run(graph, scenario.store, self._make(graph, scenario.store))
            endings.append(await run.execute())

        faulty.on_operation = scenario.look
        await faulty.run(work)
        return endings[0] if endings else None


def _describe(point: FaultPoint) -> str:
    return f"{point.when} operation {point.operation}"
