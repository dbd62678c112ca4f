"""ScriptedDestination: a destination in memory that does to each record what its script says."""

from collections.abc import Sequence
from functools import cached_property

import trio
from pydantic import Field

from conduit_py.batch import Batch
from conduit_py.sdk.destination import AckMode, Answer, Destination, Refusals
from conduit_py.sdk.options import Options
from conduit_py.testing.answers import Pending, PendingAnswers
from conduit_py.testing.etiquette import Etiquette
from conduit_py.testing.log import Delivery, Log
from conduit_py.testing.script import OnFlush, Refuse, RefuseOutside, Step, Steps, perform, steps_of


class ScriptedDestinationOptions(Options):
    """How a scripted destination behaves."""

    name: str = Field(default="destination", description="its name in the log")
    acks: AckMode = Field(default=AckMode.WRITE, description="when a record counts as handled")
    script: dict[int, Steps] = Field(default_factory=dict, description="number of a record → steps; see testing.script")
    answer_chunks: list[int] = Field(default_factory=list, description="how many answers come at once, in turn")
    answers_early: bool = Field(default=False, description="answers may come while their write has not returned")
    log: Log = Field(default_factory=Log, description="where everything is noted and kept; survives runs")
    at_open: Steps = ()
    at_teardown: Steps = ()


class ScriptedDestination(Destination[ScriptedDestinationOptions]):
    """Takes numbered records and keeps what it made durable in `log.stored`.

    A record is durable exactly when the SDK says it counts as handled: AckMode.WRITE stores it at
    once, FLUSH at the flush, LATER with its answer. What was only written dies with the run, so
    whoever acks it early loses it. A write that fails has stored the records before the failing one.
    """

    @property
    def acks(self) -> AckMode:  # type: ignore[override]
        return self.options.acks

    @property
    def log(self) -> Log:
        return self.options.log

    @cached_property
    def _etiquette(self) -> Etiquette:
        return Etiquette(self.options.name, self.log)

    async def open(self) -> None:
        self._unflushed: list[Delivery] = []
        self._pending = PendingAnswers(self.options.name, self.log, self.options.answer_chunks)
        with self._etiquette.call("open"):
            self._note("open")
            await self._perform_all(self.options.at_open, "open")

    async def write(self, batch: Batch) -> Refusals | None:
        with self._etiquette.call("write"):
            await trio.lowlevel.checkpoint()
            refusals: dict[int, str | Exception] = {}
            answers: list[Pending] = []
            for index, record in enumerate(batch):
                delivery = Delivery(batch.source, record.copy(), batch.delivery_key(index))
                self.log.writes(self.options.name, delivery)
                steps = self._steps(delivery)
                for step in steps:
                    await perform(step, self.log, self._place("write", delivery))
                if RefuseOutside() in steps:
                    refusals[len(batch)] = "scripted refusal of nothing"
                refusal = next((step.reason for step in steps if isinstance(step, Refuse)), None)
                if self.acks is AckMode.LATER:
                    answers.append(Pending.of(Answer(batch.id(index), refusal), delivery, steps))
                    if self.options.answers_early:
                        self._pending.add(answers.pop())
                elif refusal is not None:
                    refusals[index] = refusal
                else:
                    self._accept(delivery)
            # Only now: a write that fails is written again, and each message may be answered once.
            self._pending.add(*answers)
            return refusals or None

    async def flush(self) -> None:
        with self._etiquette.call("flush"):
            await trio.lowlevel.checkpoint()
            self._note("flush")
            self._pending.flush()
            while self._unflushed:
                delivery = self._unflushed[0]
                for step in self._steps(delivery):
                    if isinstance(step, OnFlush):
                        await perform(step.step, self.log, self._place("flush", delivery))
                self.log.stores(self.options.name, self._unflushed.pop(0))

    async def finish(self) -> None:
        with self._etiquette.call("finish"):
            self._note("finish")

    async def answers(self) -> Sequence[Answer]:
        with self._etiquette.call("answers", lane="answers"):
            return await self._pending.next()

    async def teardown(self) -> None:
        with self._etiquette.call("teardown"):
            self._note("teardown")
            await self._perform_all(self.options.at_teardown, "teardown")

    def _accept(self, delivery: Delivery) -> None:
        if self.acks is AckMode.WRITE:
            self.log.stores(self.options.name, delivery)
        else:
            self._unflushed.append(delivery)

    def _steps(self, delivery: Delivery) -> tuple[Step, ...]:
        number = delivery.number
        return () if number is None else steps_of(self.options.script.get(number))

    async def _perform_all(self, steps: Steps, when: str) -> None:
        await trio.lowlevel.checkpoint()
        for step in steps_of(steps):
            await perform(step, self.log, f"{self.options.name} {when}")

    def _place(self, when: str, delivery: Delivery) -> str:
        return f"{self.options.name} {when} {delivery.label}"

    def _note(self, did: str, *what: str) -> None:
        self.log.note(self.options.name, did, *what)
