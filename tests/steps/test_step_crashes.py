"""CU-27: graphs killed before and after every durable operation, once and twice, and frozen ones that wake up later."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from conduit_py.journal.journal import Journal
from conduit_py.journal.log import Commit, MemoryLog
from conduit_py.steps.graph import open_steps
from conduit_py.steps.queue import Queue, QueueMetadata, Queues, Tailer
from conduit_py.steps.step import Message, Process, Step


class Life:
    """One process: it ends, or freezes until it is thawed, at the moment with this number. None never does."""

    def __init__(self, fatal: int | None = None, *, freezes: bool = False) -> None:
        self.scope = trio.CancelScope()
        self.struck = trio.Event()
        self.thawed = trio.Event()
        self._left = fatal
        self._freezes = freezes

    async def moment(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left >= 0:
            return
        if self._freezes:
            self.struck.set()
            await self.thawed.wait()
            return
        # A dead process does nothing any more, in whichever of its tasks.
        self.struck.set()
        self.scope.cancel()
        await trio.sleep_forever()


class MortalJournal(Journal):
    """A journal as one process sees it: before and after each append there is a moment to die in."""

    def __init__(self, log: MemoryLog, life: Life, *, fenced: bool) -> None:
        super().__init__(log)
        self._life = life
        self._fenced = fenced

    async def append(self, bodies: Sequence[bytes], **options: Any) -> Commit:
        if not bodies:
            return await super().append(bodies, **options)
        if not self._fenced:
            options.pop("check", None)
        await self._life.moment()
        commit = await super().append(bodies, **options)
        await self._life.moment()
        return commit


class Disk:
    """What outlives processes: the logs of all queues and steps, and what handlers did to the world.

    A part of the protocol can be taken out: the fence, or the look whether the output is there.
    """

    def __init__(self, *, fenced: bool = True, looks: bool = True) -> None:
        self.fenced = fenced
        self.looks = looks
        self.logs: dict[str, MemoryLog] = {}
        self.effects: list[tuple[str, tuple[object, ...]]] = []

    def queues(self, life: Life) -> Queues:
        return _DiskQueues(self, life)

    async def preload(self, contents: Mapping[str, Sequence[int]]) -> None:
        queues = self.queues(Life())
        for id, numbers in contents.items():
            queue = await queues.open(id)
            for number in numbers:
                await queue.append({"x": number})

    async def contents(self, id: str) -> list[Any]:
        return [message["x"] for message in await (await self.queues(Life()).open(id)).messages()]


class _DiskQueues(Queues):
    def __init__(self, disk: Disk, life: Life) -> None:
        super().__init__()
        self._disk = disk
        self._life = life

    async def _open(self, name: str) -> Journal:
        log = self._disk.logs.setdefault(name, MemoryLog(name))
        return MortalJournal(log, self._life, fenced=self._disk.fenced)

    async def open(self, id: str) -> Queue:
        if self._disk.looks:
            return await super().open(id)
        self._queues.setdefault(id, BlindQueue(id, await self.journal(f"queues/{id}")))
        return self._queues[id]


class BlindQueue(Queue):
    """Never finds anything where it was to go."""

    async def key_at(self, index: int) -> None:
        await trio.lowlevel.checkpoint()


async def live(disk: Disk, steps: Sequence[Step], life: Life) -> None:
    """Run the graph until it has nothing more to do, or dies."""
    with life.scope:
        async with open_steps("g", steps, disk.queues(life)) as graph:
            await graph.start()
            await trio.testing.wait_all_tasks_blocked()
            await graph.stop()


class Scenario:
    """A graph with the contents of its sources, and what must have come out in the end."""

    def __init__(self, shape: str, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.shape = shape

    async def prepare(self) -> None:
        sources = {"s1": [1, 2]} if self.shape == "pipe" else {"s1": [1, 2], "s2": [10, 21]}
        await self.disk.preload(sources)

    def steps(self) -> list[Step]:
        note = self._noted
        if self.shape == "pipe":
            odd = Step(id="p", handler=note(_even_only), inputs={"in": "s1"}, outputs={"out": "q1"}, errors="errors")
            return [Step(id="s1"), odd, Step(id="sink", handler=note(_nothing), inputs={"in": "q1"})]
        sources = [Step(id="s1"), Step(id="s2")]
        if self.shape == "alts":
            return [*sources, Step(id="p", handler=note(_pass_on), alts={"a": "s1", "b": "s2"}, outputs={"out": "q1"})]
        both = Step(id="p", handler=note(_routed), inputs={"a": "s1", "b": "s2"}, outputs={"l": "q1", "r": "q2"})
        return [*sources, both]

    async def check(self) -> None:
        disk = self.disk
        if self.shape == "pipe":
            assert await disk.contents("q1") == [2]
            errors = await (await disk.queues(Life()).open("errors")).messages()
            assert [error["messages"] for error in errors] == [{"in": {"x": 1}}]
        elif self.shape == "alts":
            assert Counter(await disk.contents("q1")) == Counter([1, 2, 10, 21])
            assert [x for x in await disk.contents("q1") if x < 10] == [1, 2]
        else:
            assert (await disk.contents("q1"), await disk.contents("q2")) == ([11, 23], [23])
        # A destination that keeps keys has done each thing once: a key never stands for two different things.
        assert len(set(disk.effects)) == len({key for key, _ in disk.effects})

    def _noted(self, handler: Any) -> Any:
        async def handle(process: Process, messages: Mapping[str, Message]) -> Any:
            seen = tuple(sorted((name, message["x"]) for name, message in messages.items()))
            self.disk.effects.append((process.delivery_key, seen))
            await trio.lowlevel.checkpoint()
            return handler(messages)

        return handle


def _even_only(messages: Mapping[str, Message]) -> Mapping[str, Message]:
    if messages["in"]["x"] % 2:
        raise ValueError("odd")
    return {"out": messages["in"]}


def _nothing(messages: Mapping[str, Message]) -> None:
    return None


def _pass_on(messages: Mapping[str, Message]) -> Mapping[str, Message]:
    (only,) = messages.values()
    return {"out": only}


def _routed(messages: Mapping[str, Message]) -> Mapping[str, Message | None]:
    total = {"x": sum(message["x"] for message in messages.values())}
    return {"l": total, "r": total if total["x"] > 20 else None}


SHAPES = ["pipe", "alts", "fork"]


@pytest.mark.parametrize("shape", SHAPES)
async def test_cu_27_killed_once_at_every_moment(shape: str) -> None:
    for moment in itertools.count():
        scenario = Scenario(shape)
        await scenario.prepare()
        life = Life(moment)

        await live(scenario.disk, scenario.steps(), life)
        await live(scenario.disk, scenario.steps(), Life())

        await scenario.check()
        if not life.struck.is_set():
            assert moment > 10, "hardly anything was durable"
            return


@pytest.mark.parametrize("shape", SHAPES)
async def test_cu_27_killed_twice_at_every_pair_of_moments(shape: str) -> None:
    for first in itertools.count():
        for second in itertools.count():
            scenario = Scenario(shape)
            await scenario.prepare()
            once, again = Life(first), Life(second)

            await live(scenario.disk, scenario.steps(), once)
            await live(scenario.disk, scenario.steps(), again)
            await live(scenario.disk, scenario.steps(), Life())

            await scenario.check()
            if not again.struck.is_set():
                break
        if not once.struck.is_set():
            return


async def with_zombie(scenario: Scenario, moment: int) -> bool:
    """Freeze a process at this moment, let another do all the work, then thaw it; False if it ended before."""
    zombie = Life(moment, freezes=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(live, scenario.disk, scenario.steps(), zombie)
        await trio.testing.wait_all_tasks_blocked()
        frozen = zombie.struck.is_set()
        if frozen:
            await live(scenario.disk, scenario.steps(), Life())
            zombie.thawed.set()
            await trio.testing.wait_all_tasks_blocked()
        zombie.scope.cancel()
    await live(scenario.disk, scenario.steps(), Life())
    return frozen


@pytest.mark.parametrize("shape", SHAPES)
async def test_cu_27_a_frozen_process_that_wakes_up_later_changes_nothing(shape: str) -> None:
    for moment in itertools.count():
        scenario = Scenario(shape)
        await scenario.prepare()

        frozen = await with_zombie(scenario, moment)

        await scenario.check()
        if not frozen:
            return


async def broken_promises(*, zombies: bool, **without: bool) -> int:
    """How many moments break the promise with a part of the protocol taken out."""
    found = 0
    for shape in SHAPES:
        more, moments = True, itertools.count()
        while more:
            moment = next(moments)
            scenario = Scenario(shape, Disk(**without))
            await scenario.prepare()
            if zombies:
                more = await with_zombie(scenario, moment)
            else:
                life = Life(moment)
                await live(scenario.disk, scenario.steps(), life)
                await live(scenario.disk, scenario.steps(), Life())
                more = life.struck.is_set()
            try:
                await scenario.check()
            except AssertionError:
                found += 1
    return found


async def test_the_harness_notices_when_nobody_looks_whether_the_output_is_there() -> None:
    assert await broken_promises(zombies=False, looks=False) > 0


async def test_the_harness_notices_when_nobody_is_fenced() -> None:
    assert await broken_promises(zombies=True, fenced=False) > 0


async def test_cu_24_every_pair_goes_through_a_join_and_fork(tmp_path: Any) -> None:
    count = 200
    both = Step(id="p", handler=_paired, inputs={"a": "s1", "b": "s2"}, outputs={"l": "q1", "r": "q2"})
    queues = Queues(tmp_path, sync="never", metadata={"q1": QueueMetadata()})
    with trio.fail_after(300):
        async with open_steps("g", [Step(id="s1"), Step(id="s2"), both], queues) as graph:
            await graph.start()
            for number in range(count):
                await graph.send({"x": number}, "s1")
                await graph.send({"x": number}, "s2")
            tailer = Tailer(graph.queue("q2"))
            for _ in range(count):
                await tailer.wait()
                await tailer.read()
            tailer.close()
            left, right = await graph.queue("q1").messages(), await graph.queue("q2").messages()
        await queues.close()

    assert [message["x"] for message in left] == [message["x"] for message in right] == list(range(0, 2 * count, 2))


def _paired(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
    total = {"x": messages["a"]["x"] + messages["b"]["x"]}
    return {"l": total, "r": total}
