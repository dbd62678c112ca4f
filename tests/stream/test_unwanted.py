"""Records that no destination wants are acked, as filtered ones are, and counted."""

import pytest
from conduit_connectors import memory

import conduit_py
from conduit_py import Destination, Pipeline, Record, Source
from conduit_py.pipeline_settings import Delivery
from conduit_py.sdk.processor import Condition


def below(limit: int) -> Condition:
    return lambda record: bool(record.payload["n"] < limit)


def pass_on(record: Record) -> Record:
    return record


def split(record: Record) -> list[Record]:
    """Make two records of each, of which the second has a number that is ten higher."""
    n = record.payload["n"]
    return [Record.of({"n": n}), Record.of({"n": n + 10})]


def counts(
    destinations: list[Destination], *processors: object, delivery: Delivery = "at_least_once"
) -> tuple[int, int]:
    """Run ten records, numbered from 0; return how many were acked, and how many nobody wanted."""
    pipeline = Pipeline(
        "p",
        sources=[Source("in", memory.Source(records=[{"n": n} for n in range(10)]), batch_size=3)],
        processors=list(processors),  # type: ignore[arg-type]
        destinations=destinations,
        delivery=delivery,
    )
    outcome = conduit_py.run(pipeline)
    outcome.raise_for_error()
    return outcome.counts.acked, outcome.counts.unwanted


@pytest.mark.parametrize("own", [[], [pass_on]], ids=["condition in the writer", "condition as a node"])
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_record_is_unwanted_if_the_conditions_of_all_destinations_refuse_it(
    own: list[object], delivery: Delivery
) -> None:
    small = Destination("small", memory.Destination(into=[]), when=below(3), processors=own)  # type: ignore[arg-type]
    medium = Destination("medium", memory.Destination(into=[]), when=below(6))

    assert counts([small, medium], delivery=delivery) == (10, 4)
    assert counts([small], delivery=delivery) == (10, 7)


def test_nothing_is_unwanted_that_a_destination_without_a_condition_gets() -> None:
    small = Destination("small", memory.Destination(into=[]), when=below(3))
    whole = Destination("whole", memory.Destination(into=[]))

    assert counts([small, whole]) == (10, 0)


def test_what_a_processor_filters_or_a_condition_raises_for_is_not_unwanted() -> None:
    small = Destination("small", memory.Destination(into=[]), when=below(3))

    assert counts([small], lambda record: record if record.payload["n"] < 5 else None) == (10, 2)


def test_a_split_record_is_unwanted_if_none_of_its_pieces_is_wanted() -> None:
    # Pieces are n and n + 10: of records 0 to 2 the first piece is wanted, of the others none.
    small = Destination("small", memory.Destination(into=[]), when=below(3))

    assert counts([small], split) == (10, 7)
