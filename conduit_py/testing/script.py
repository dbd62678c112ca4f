"""Steps: what a scripted end does when it meets a record, instead of simply handling it.

A script maps the number of a record to one step, or to several that happen in turn:

    ScriptedSource(records=9, script={3: Delay(2), 5: Fail("link down"), 7: OnAck(Block())})
    ScriptedDestination(script={4: Refuse("no such customer"), 6: (Delay(1), Fail(times=None))})
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import trio

from conduit_py.errors import TransientError
from conduit_py.record import Record
from conduit_py.testing.event_log import EventLog


class ScriptStep(msgspec.Struct, frozen=True):
    """Base of all steps."""


class Delay(ScriptStep, frozen=True):
    """Take `seconds` of the run's clock. A shielded one cannot be cancelled: a connector that ignores a stop."""

    seconds: float
    shielded: bool = False


class Block(ScriptStep, frozen=True):
    """Never return; only cancellation ends it. On an answer: it never comes."""


class Fail(ScriptStep, frozen=True):
    """Raise `error`, the first `times` times that the record is met, over all runs; None is always."""

    message: str = "scripted failure"
    error: type[Exception] = TransientError
    times: int | None = 1


class Refuse(ScriptStep, frozen=True):
    """Refuse the record: as unreadable at a source, as not acceptable at a destination."""

    reason: str = "scripted refusal"


class Idle(ScriptStep, frozen=True):
    """A source raises NothingYet, `times` times in all, before it has this record."""

    times: int = 1


class WithProgress(ScriptStep, frozen=True):
    """A reading of a source ends with this record and has progress behind it, as from the end of a transaction."""


class InGroup(ScriptStep, frozen=True):
    """At a source: the next record belongs to the same group as this one."""


class OnAck(ScriptStep, frozen=True):
    """At a source: the step happens when the record's position is acked."""

    step: ScriptStep


class OnFlush(ScriptStep, frozen=True):
    """At a destination: the step happens at the next flush, while the record is not durable yet."""

    step: ScriptStep


class OnAnswer(ScriptStep, frozen=True):
    """At a destination that answers later: the step happens to the answer for this record.

    Delay makes it late and so out of order, Block keeps it back for ever. Fail crashes the answers, AwaitFlush holds it
    until the next flush. RepeatAnswer and AnswerUnknown break the contract.
    """

    step: ScriptStep


class AwaitFlush(ScriptStep, frozen=True):
    """The answer comes only after the next flush."""


class ReturnNothing(ScriptStep, frozen=True):
    """Broken contract: the source returns no record at all, once."""


class ReturnTooMany(ScriptStep, frozen=True):
    """Broken contract: the source returns one record more than it was asked for."""


class RepeatPosition(ScriptStep, frozen=True):
    """Broken contract: the record has the position of the one before it."""


class EmptyPosition(ScriptStep, frozen=True):
    """Broken contract: the record has no position."""


class RefuseOutside(ScriptStep, frozen=True):
    """Broken contract: the destination refuses an index that the batch does not have."""


class RepeatAnswer(ScriptStep, frozen=True):
    """Broken contract, as OnAnswer(RepeatAnswer()): the same answer comes twice."""


class AnswerUnknown(ScriptStep, frozen=True):
    """Broken contract, as OnAnswer(AnswerUnknown()): there is an answer for a message that was never written too."""


Steps: TypeAlias = ScriptStep | tuple[ScriptStep, ...]
Script: TypeAlias = Mapping[int, Steps]


def steps_of(steps: Steps | None) -> tuple[ScriptStep, ...]:
    if steps is None:
        return ()
    return (steps,) if isinstance(steps, ScriptStep) else steps


async def perform(step: ScriptStep, log: EventLog, place: str) -> None:
    """Do what Delay, Block and Fail say; other steps mean something only to the end that met them.

    `place` names where the step stands, so that a failure which happens once does so once in all runs.
    """
    match step:
        case Delay(seconds=seconds, shielded=shielded):
            with trio.CancelScope(shield=shielded):
                await trio.sleep(seconds)
        case Block():
            await trio.sleep_forever()
        case Fail(message=message, error=error, times=times):
            if times is None or log.count(place) <= times:
                raise error(message)
        case _:
            pass


class InterruptedRecords(list[Record]):
    """Records of which only the first half can be read."""

    def __iter__(self) -> Iterator[Record]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, key: Any) -> Any:
        last = range(len(self))[key] if isinstance(key, int) else max(range(len(self))[key], default=0)
        if last >= len(self) // 2:
            # What clients of most systems raise, or wrap.
            raise ConnectionResetError("the acceptance suite interrupts this write")
        return super().__getitem__(key)
