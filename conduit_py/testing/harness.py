"""The short way to run a pipeline in a test, and to test one without the systems it is written for."""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from conduit_py.batch import Batch
from conduit_py.dead_letter_policy import DestinationPolicy
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Source, without_schedule
from conduit_py.record import Data, Record
from conduit_py.sdk.destination import Refusals, WriteGuarantee
from conduit_py.status import LastError, PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store
from conduit_py.stream.meter import Progress
from conduit_py.testing.event_log import EventLog
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource

T = TypeVar("T")


@dataclass(frozen=True)
class ObservedRun:
    """How a pipeline stands after a run. What the ends saw and keep is known only of scripted ones."""

    state: PipelineState
    progress: Progress
    positions: dict[str, bytes]
    """By source: the position from which the next run would go on."""
    acks: dict[str, list[bytes]] = field(default_factory=dict)
    """By source: the positions acked to it, in order, in all runs."""
    outputs: dict[str, list[Record]] = field(default_factory=dict)
    """By destination: the records it holds, in order, of all runs."""
    dead_letters: list[Record] = field(default_factory=list)
    """What the dead-letter destination holds."""

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def error(self) -> LastError | None:
        return self.state.error

    def payloads(self, destination: str) -> list[Data]:
        """What a destination holds, without keys and metadata."""
        return [record.payload.after for record in self.outputs[destination]]


async def run_to_end(pipeline: Pipeline, store: Store | None = None) -> ObservedRun:
    """Run a pipeline until it completes, stops or fails for good, and return how it ended.

    Without a store everything is forgotten afterwards; with one, a second run goes on where the first
    ended. Raises AssertionError if the runtime broke a promise towards a scripted end.
    """
    store = store or MemoryStore()
    # Drawn from `random`, so that in a simulation the seed decides about back-off too.
    supervisor = Supervisor(pipeline, store, rng=random.Random(random.getrandbits(64)))
    state = await supervisor.run()
    outcome = ObservedRun(state, supervisor.progress(), await store.positions(pipeline.id))
    for source in pipeline.sources:
        if isinstance(source.connector, ScriptedSource):
            source.connector.log.check(after_run=True)
            outcome.acks[source.id] = list(source.connector.log.acked[source.connector.options.name])
    for destination in pipeline.destinations:
        if isinstance(destination.connector, ScriptedDestination):
            outcome.outputs[destination.id] = _stored_records(destination.connector)
    if isinstance(pipeline.dead_letters.policy.connector, ScriptedDestination):
        outcome.dead_letters.extend(_stored_records(pipeline.dead_letters.policy.connector))
    return outcome


async def rehearse(pipeline: Pipeline, records: Mapping[str, Sequence[Record | Data]]) -> ObservedRun:
    """Run a pipeline's processors and routing on these records, by source id, without its real ends.

    Sources give the records and end, destinations and dead letters are kept in memory; all else is as
    in the pipeline. It touches no outside system and no state. In a sync test:
    `simulate(rehearse, pipeline, {"web": [{"amount": 1}]})`.
    """
    unknown = sorted(set(records) - {source.id for source in pipeline.sources})
    if unknown:
        known = ", ".join(source.id for source in pipeline.sources)
        raise ValueError(f"there are no sources {', '.join(unknown)} in pipeline {pipeline.id}; it has {known}")
    log = EventLog()
    rehearsal = without_schedule(pipeline)
    rehearsal.sources = [_scripted_source(source, records.get(source.id, ()), log) for source in rehearsal.sources]
    rehearsal.destinations = [_rehearsed_destination(destination, log) for destination in pipeline.destinations]
    rehearsal.dead_letters = _rehearsed_dead_letters(pipeline.dead_letters, log)
    return await run_to_end(rehearsal)


def _stored_records(connector: ScriptedDestination) -> list[Record]:
    connector.log.check(after_run=True)
    return [delivery.record for delivery in connector.log.stored[connector.options.name]]


def _scripted_source(source: Source, records: Sequence[Record | Data], log: EventLog) -> Source:
    given = [item if isinstance(item, Record) else Record.of(item) for item in records]
    return _with(source, connector=ScriptedSource(name=source.id, records=given, log=log))


def _rehearsed_destination(destination: Destination, log: EventLog) -> Destination:
    return _with(destination, connector=_Rehearsed(name=destination.id, log=log))


class _Rehearsed(ScriptedDestination):
    """Takes the place of any destination, also in an exactly-once pipeline: what comes again is not kept again."""

    guarantee: ClassVar[WriteGuarantee] = WriteGuarantee.IDEMPOTENT

    async def write(self, batch: Batch) -> Refusals | None:
        kept = {delivery.key for delivery in self.log.stored[self.options.name]}
        return await super().write(batch.select([i for i in range(len(batch)) if batch.delivery_key(i) not in kept]))


def _rehearsed_dead_letters(dead_letters: DeadLetters, log: EventLog) -> DeadLetters:
    if dead_letters.policy.discards:
        return dead_letters
    return _with(dead_letters, policy=DestinationPolicy(_Rehearsed(name="dead-letters", log=log)))


def _with(declared: T, **changes: Any) -> T:
    changed = copy.copy(declared)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
