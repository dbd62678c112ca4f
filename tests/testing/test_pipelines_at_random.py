"""Whole pipelines under scripts, sizes and schedules that Hypothesis chooses: they complete and lose nothing."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Source
from conduit_py.sdk import AckMode
from conduit_py.status import Status
from conduit_py.testing import strategies
from conduit_py.testing.event_log import EventLog, position_of
from conduit_py.testing.harness import run_to_end
from conduit_py.testing.script import Refuse, Steps, WithProgress, steps_of
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource
from conduit_py.testing.simulation import simulate

COUNT = 12


@dataclass(frozen=True)
class World:
    """A pipeline as plain values, so that Hypothesis can show the one that failed."""

    source: dict[int, Steps]
    source_chunks: list[int]
    destinations: list[tuple[AckMode, dict[int, Steps], list[int]]]
    batch_size: int
    window: int
    progress: set[int]

    def pipeline(self, log: EventLog) -> Pipeline:
        script: dict[int, Steps] = {number: WithProgress() for number in self.progress}
        script |= {
            number: (*steps_of(steps), WithProgress()) if number in self.progress else steps
            for number, steps in self.source.items()
        }
        source = ScriptedSource(log=log, records=COUNT, prunes=True, script=script, chunks=self.source_chunks)
        return Pipeline(
            "random",
            sources=[Source("in", source, batch_size=self.batch_size, window=self.window)],
            destinations=[
                Destination(f"out{index}", _end(log, index, acks, script, chunks))
                for index, (acks, script, chunks) in enumerate(self.destinations)
            ],
            dead_letters=DeadLetters(ScriptedDestination(log=log, name="letters")),
            recovery=Recovery(retries=None, delay_max_seconds=2),
        )


def _end(log: EventLog, index: int, acks: AckMode, script: dict[int, Steps], chunks: list[int]) -> ScriptedDestination:
    return ScriptedDestination(log=log, name=f"out{index}", acks=acks, script=script, answer_chunks=chunks)


def destinations() -> st.SearchStrategy[tuple[AckMode, dict[int, Steps], list[int]]]:
    return st.sampled_from(AckMode).flatmap(
        lambda acks: st.tuples(st.just(acks), strategies.destination_scripts(COUNT, acks), strategies.chunks())
    )


worlds = st.builds(
    World,
    strategies.source_scripts(COUNT),
    strategies.chunks(),
    st.lists(destinations(), min_size=1, max_size=2),
    st.integers(1, 5),
    st.integers(1, COUNT),
    st.sets(st.integers(0, COUNT - 1), max_size=4),
)


@given(worlds, strategies.seeds())
@settings(max_examples=60, deadline=None)
def test_every_record_arrives_or_is_a_dead_letter(world: World, seed: int) -> None:
    log = EventLog()
    outcome = simulate(run_to_end, world.pipeline(log), seed=seed)

    assert outcome.status is Status.COMPLETED, outcome.error
    last = position_of(COUNT - 1)
    assert outcome.positions == {"in": last + b"+" if COUNT - 1 in world.progress else last}
    # Invariant 3. An ack that failed is not repeated: its position was durable before it.
    acked = [float(position.replace(b"+", b".5")) for position in dict.fromkeys(outcome.acks["in"])]
    assert acked == sorted(acked)
    wanted = [number for number in range(COUNT) if number not in refused(world.source)]
    letters = set(log.numbers("letters"))
    assert letters >= refused(world.source)
    for index, (_, script, _) in enumerate(world.destinations):
        received = [delivery.number for delivery in log.received[f"out{index}"]]
        assert list(dict.fromkeys(received)) == wanted
        assert set(log.numbers(f"out{index}")) == set(wanted) - refused(script)
        assert letters >= refused(script)


def refused(script: dict[int, Steps]) -> set[int]:
    return {number for number, steps in script.items() if any(isinstance(step, Refuse) for step in steps_of(steps))}
