"""ScriptedSource: an in-memory source that follows a script for each record."""

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import trio
from pydantic import Field

from conduit_py.errors import FatalError
from conduit_py.record import Record
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading, SourceConnector
from conduit_py.testing.event_log import CallOrder, EventLog, numbered_record, position_of
from conduit_py.testing.script import (
    Block,
    Delay,
    EmptyPosition,
    Fail,
    Idle,
    InGroup,
    OnAck,
    Refuse,
    RepeatPosition,
    ReturnNothing,
    ReturnTooMany,
    ScriptStep,
    Steps,
    WithProgress,
    perform,
    steps_of,
)


class ScriptedSourceOptions(Options):
    """What a scripted source holds and how it behaves."""

    name: str = Field(default="source", description="its name in the log and in its records")
    records: int | list[Record] = Field(default=10, description="how many numbered records, or the records themselves")
    script: dict[int, Steps] = Field(default_factory=dict, description="number of a record → steps; see testing.script")
    chunks: list[int] = Field(default_factory=list, description="how many records reads return, in turn; [] is all")
    bounded: bool = Field(default=True, description="False waits for ever after the last record")
    prunes: bool = Field(default=False, description="acked records are gone for ever, as from a queue")
    log: EventLog = Field(default_factory=EventLog, description="where everything is noted; survives runs")
    at_open: Steps = ()
    at_stop: Steps = Field(default=(), description="steps when `stop` is called; only a StoppableSource has it")
    at_teardown: Steps = ()


class ScriptedSource(SourceConnector[ScriptedSourceOptions]):
    """Records 0, 1, 2, …; the position of a record is its number, and reading resumes after any of them.

    A source that prunes raises FatalError when it is opened at a record that was acked. So a runtime that acks a
    position before it is durable fails after a crash. A stop cancels its reads, as with every async source that has
    no `stop` of its own. Progress behind record 7 is the position `7+`.
    """

    has_groups: ClassVar[bool] = True

    @property
    def log(self) -> EventLog:
        return self.options.log

    @cached_property
    def _call_order(self) -> CallOrder:
        return CallOrder(self.options.name, self.log)

    async def open(self, position: bytes | None) -> None:
        self._unacked: deque[bytes] = deque()
        self._reads = 0
        self._next = 0 if position is None else int(position.removesuffix(b"+")) + 1
        with self._call_order.call("open"):
            self._note("open", *([] if position is None else [position.decode()]))
            await self._perform_all(self.options.at_open, "open")
            gone = self.log.pruned[self.options.name]
            if self.options.prunes and self._next < gone:
                raise FatalError(f"asked for record {self._next}, but all before {gone} were acked and are gone")

    async def read(self, n: int) -> list[Record] | Reading:
        with self._call_order.call("read"):
            await trio.lowlevel.checkpoint()
            if n < 1:
                self.log.violation(self.options.name, f"read was asked for {n} records")
            if self._next >= self._total:
                await self._end()
            number = self._next
            steps = self._steps(number)
            for step in steps:
                await self._before(number, step)
            if ReturnNothing() in steps and self.log.count(self._place("nothing", number)) == 1:
                return []
            count = n + 1 if ReturnTooMany() in steps else self._chunk(n)
            return self._take(count)

    async def ack(self, positions: Sequence[bytes]) -> None:
        with self._call_order.call("ack", group="ack"):
            await trio.lowlevel.checkpoint()
            for position in positions:
                for step in self._steps(int(position or b"0")) if position.isdigit() or not position else ():
                    if isinstance(step, OnAck):
                        await perform(step.step, self.log, self._place("ack", position.decode()))
                self._note_ack(position)

    async def teardown(self) -> None:
        with self._call_order.call("teardown"):
            self._note("teardown")
            await self._perform_all(self.options.at_teardown, "teardown")

    @property
    def _total(self) -> int:
        records = self.options.records
        return records if isinstance(records, int) else len(records)

    def _steps(self, number: int) -> tuple[ScriptStep, ...]:
        return steps_of(self.options.script.get(number))

    async def _before(self, number: int, step: ScriptStep) -> None:
        if isinstance(step, Idle):
            if self.log.count(self._place("not yet", number)) <= step.times:
                raise NothingYet
        else:
            await perform(step, self.log, self._place("read", number))

    async def _end(self) -> None:
        if not self.options.bounded:
            await trio.sleep_forever()
        self._note("end")
        raise EndOfSource

    def _chunk(self, n: int) -> int:
        """As many as asked for and scripted, but up to the next record that must be read alone and first."""
        chunks = self.options.chunks
        count = min(n, chunks[self._reads % len(chunks)] if chunks else n, self._total - self._next)
        self._reads += 1
        for ahead in range(1, count):
            steps = self._steps(self._next + ahead)
            if any(isinstance(step, _FIRST) for step in steps) or self._has(WithProgress(), ahead):
                return self._whole_groups(ahead)
        return self._whole_groups(count)

    def _has(self, step: ScriptStep, count: int) -> bool:
        """Return True if the last of the next `count` records has this step."""
        return step in self._steps(self._next + count - 1)

    def _whole_groups(self, count: int) -> int:
        """Leave out a group that `count` records would not end, unless it is the only one."""
        ends = [stop for stop in range(1, count + 1) if not self._has(InGroup(), stop)]
        return ends[-1] if ends else count

    # From here to the return of `read` nothing waits, so a cancelled read has lost no record.
    def _take(self, count: int) -> list[Record] | Reading:
        numbers = range(self._next, self._next + count)
        records = [self._record(number) for number in numbers]
        refused = {
            index: step.reason
            for index, number in enumerate(numbers)
            for step in self._steps(number)
            if isinstance(step, Refuse)
        }
        continues = self._has(InGroup(), count)
        progress = b"%d+" % numbers[-1] if self._has(WithProgress(), count) else None
        self._next += count
        positions = [record.position for record in records]
        self._unacked.extend(positions)
        self.log.reads(self.options.name, positions)
        if progress is not None or continues:
            return Reading(records, refused, progress, continues)
        return Reading(records, refused) if refused else records

    def _record(self, number: int) -> Record:
        given = self.options.records
        if isinstance(given, int) or number >= len(given):
            record = numbered_record(number, self.options.name)
        else:
            # A copy: processors may change a record in place, and the next run must read it unchanged.
            record = given[number].copy()
            record.position = position_of(number)
        steps = self._steps(number)
        if RepeatPosition() in steps:
            record.position = position_of(number - 1)
        if EmptyPosition() in steps:
            record.position = b""
        return record

    def _note_ack(self, position: bytes) -> None:
        name = self.options.name
        grouped = any(InGroup() in steps_of(steps) for steps in self.options.script.values())
        # An atomic source gets an ack for the last of several records.
        while grouped and position in self._unacked and self._unacked[0] != position:
            self._unacked.popleft()
        if position.endswith(b"+"):
            early = [each for each in self._unacked if int(each) <= int(position[:-1])]
            if early:
                self.log.violation(name, f"progress {position.decode()} was acked before {early[0].decode()}")
        elif not self._unacked or self._unacked[0] != position:
            due = self._unacked[0].decode() if self._unacked else "nothing"
            self.log.violation(name, f"{position.decode()} was acked when {due} was due")
        if position in self._unacked:
            self._unacked.remove(position)
        self.log.acks(name, position, prune=self.options.prunes)

    async def _perform_all(self, steps: Steps, when: str) -> None:
        await trio.lowlevel.checkpoint()
        for step in steps_of(steps):
            await perform(step, self.log, self._place(when))

    def _place(self, *parts: Any) -> str:
        return " ".join(map(str, (self.options.name, *parts)))

    def _note(self, did: str, *what: str) -> None:
        self.log.note(self.options.name, did, *what)


class StoppableSource(ScriptedSource):
    """A ScriptedSource with `stop`: it ends a read that waits, except one that a Block holds."""

    async def open(self, position: bytes | None) -> None:
        self._stopped = False
        self._waiting = trio.CancelScope()
        await super().open(position)

    async def read(self, n: int) -> list[Record] | Reading:
        if not self._stopped:
            with trio.CancelScope() as self._waiting:
                return await super().read(n)
        raise EndOfSource

    async def stop(self) -> None:
        with self._call_order.call("stop", group="stop"):
            self._note("stop")
            await self._perform_all(self.options.at_stop, "stop")
            self._stopped = True
            # A Block stands for a read that nothing ends: the runtime has to give up on it by itself.
            stuck = self._next < self._total and Block() in self._steps(self._next)
            if not stuck:
                self._waiting.cancel()


_FIRST = (Delay, Block, Fail, Idle, ReturnNothing, ReturnTooMany)
"""Steps that happen before a record is read, so it cannot be read in the middle of others."""
