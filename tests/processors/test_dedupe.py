"""dedupe: the first record of a key passes, through crashes and in memory that does not grow with the keys."""

from typing import Any

import pytest
from conduit_processors import dedupe

from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_py.record import Record
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import ObservedRun, ScriptedDestination, ScriptedSource, run_to_end, simulate
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage


def pipeline(storage: FakeStorage, keys: list[Any], **options: Any) -> Pipeline:
    records = [Record.of({"n": number, **({} if key is None else {"id": key})}) for number, key in enumerate(keys)]
    return Pipeline(
        "p",
        sources=[Source("s", ScriptedSource(records=records, chunks=[3]), batch_size=3, window=8)],
        processors=[dedupe.Dedupe(key=".Payload.After.id", **options)],
        destinations=[Destination("d", FakeStagedDestination(storage=storage))],
        dead_letters=DeadLetters("drop"),
        delivery="exactly_once",
    )


def test_repeats_are_dropped_within_a_batch_across_batches_and_runs() -> None:
    storage, store = FakeStorage(), MemoryStore()
    keys = ["a", "a", "b", 1, 1.0, True, "1", "b", None, "c", "a"]

    first: ObservedRun = simulate(run_to_end, pipeline(storage, keys), store)
    again = simulate(run_to_end, pipeline(storage, [*keys, "c", "d"]), store)

    assert (first.error, again.error) == (None, None)
    assert storage.visible == [0, 2, 3, 4, 5, 6, 9, 12]


def test_without_exactly_once_it_is_a_problem() -> None:
    made = Pipeline(
        "p",
        sources=[Source("s", ScriptedSource())],
        processors=[dedupe.Dedupe(key="id")],
        destinations=[Destination("d", ScriptedDestination())],
    )
    from conduit_py.graph.compile import compile_pipeline

    with pytest.raises(Exception, match="keeps state, which is correct after a crash only if it commits"):
        compile_pipeline(made)


def test_a_key_is_forgotten_after_its_time() -> None:
    made = dedupe.Dedupe(key="id", ttl_seconds=60).fresh()
    made.open()

    assert made.state.retentions == {"keys": 60}
    assert dedupe.Dedupe(key="id", ttl_seconds=0).problems[0].path == "ttl_seconds"
