"""What a processor's results mean: pass on, filter, split, refuse; per record and per batch, sync and async."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Source, processor, sdk
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch, MessageId
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, position_of


class Outcome:
    """A pipeline of one source, some processors and one destination, after its run."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.letters: list[DeadLetter] = []
        self.batches: list[list[MessageId]] = []
        self.state = PipelineState()

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    @property
    def numbers(self) -> list[int | None]:
        return self.log.numbers()

    @property
    def written(self) -> list[Record]:
        return [delivery.record for delivery in self.log.stored["destination"]]

    @property
    def error(self) -> tuple[str, str | None]:
        assert self.state.error is not None
        return self.state.error.message, self.state.error.node


class Seeing(ScriptedDestination):
    """Shows the identities of the batches that it was given."""

    seen: list[list[MessageId]]

    async def write(self, batch: Batch) -> sdk.destination.Refusals | None:
        self.seen.append(batch.ids)
        return await super().write(batch)

    def fresh(self) -> "Seeing":
        new = super().fresh()
        assert isinstance(new, Seeing)
        new.seen = self.seen
        return new


async def run(*processors: Any, records: int = 6, batch_size: int = 6) -> Outcome:
    outcome = Outcome()
    destination = Seeing(log=outcome.log)
    destination.seen = outcome.batches
    pipeline = Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=records, log=outcome.log), batch_size=batch_size)],
        processors=processors,
        destinations=[Destination("destination", destination)],
        dead_letters=DeadLetters(outcome.keep),
    )
    outcome.state = await Supervisor(pipeline, MemoryStore()).run()
    if outcome.state.status is Status.COMPLETED:
        assert outcome.log.acked["source"] == [position_of(n) for n in range(records)]
    outcome.log.check()
    return outcome


def answer(record: Record) -> Record | list[Record] | None:
    """Filters 1, splits 2 in two, refuses 3, replaces 4, keeps the others."""
    match record.payload["n"]:
        case 1:
            return None
        case 2:
            return [Record.of({"n": 20}), Record.of({"n": 21})]
        case 3:
            raise ValueError("three is refused")
        case 4:
            return Record.of({"n": 40})
    return record


async def answer_async(record: Record) -> Record | list[Record] | None:
    await trio.sleep(0.1)
    return answer(record)


def attempt(record: Record) -> Any:
    try:
        return answer(record)
    except ValueError as error:
        return error


@processor(batch=True)
def answer_batch(batch: Batch) -> list[Any]:
    return [attempt(record) for record in batch]


@processor(batch=True)
async def answer_batch_async(batch: Batch) -> Sequence[Any]:
    await trio.sleep(0.1)
    return tuple(attempt(record) for record in batch)


class ByRecord(sdk.Processor[sdk.Options]):
    def process(self, record: Record) -> sdk.Result:
        return answer(record)


class ByBatch(sdk.Processor[sdk.Options]):
    async def process_batch(self, batch: Batch) -> list[sdk.Result]:
        return [attempt(record) for record in batch]


WAYS: list[Any] = [answer, answer_async, answer_batch, answer_batch_async, ByRecord(), ByBatch()]


@pytest.mark.parametrize("batch_size", [1, 4, 6])
async def test_a_function_that_raises_stop_iteration_refuses_its_record_and_no_other(
    batch_size: int, autojump_clock: MockClock
) -> None:
    """As the `next` of something empty does: it would end any loop over the records."""

    @processor
    def doubled(record: Record) -> Record:
        n = record.payload["n"]
        record.payload["n"] = 10 * next(iter([n] if n != 3 else []))
        return record

    outcome = await run(doubled, batch_size=batch_size)

    assert outcome.state.status is Status.COMPLETED
    assert outcome.numbers == [0, 10, 20, 40, 50]
    [letter] = outcome.letters
    assert (letter.message.sequence, letter.error) == (3, "RuntimeError: the processor raised StopIteration")


@pytest.mark.parametrize("batch_size", [1, 4, 6])
@pytest.mark.parametrize("way", WAYS, ids=["sync", "async", "batch", "async batch", "class", "batch class"])
async def test_every_way_to_write_a_processor_means_the_same(
    way: Any, batch_size: int, autojump_clock: MockClock
) -> None:
    outcome = await run(Processor("answer", way), batch_size=batch_size)

    assert outcome.state.status is Status.COMPLETED
    assert outcome.numbers == [0, 20, 21, 40, 5]
    [letter] = outcome.letters
    assert (letter.message.sequence, letter.node, letter.error) == (3, "answer", "ValueError: three is refused")
    assert letter.failures[0].attempt == 1
    assert letter.position == b"3"


async def test_an_exception_from_a_batch_function_refuses_every_record_of_that_batch(autojump_clock: MockClock) -> None:
    @processor(batch=True)
    def fail_second(batch: Batch) -> list[Record]:
        if batch.sequences[0] == 2:
            raise RecordRefused("not this batch")
        return batch.records

    outcome = await run(fail_second, batch_size=2)

    assert outcome.numbers == [0, 1, 4, 5]
    assert [(letter.message.sequence, letter.error) for letter in outcome.letters] == [
        (2, "not this batch"),
        (3, "not this batch"),
    ]


class TestSplits:
    """A list stands for the record: none of it, one, or several pieces that keep its identity."""

    async def test_into_none_one_and_many(self, autojump_clock: MockClock) -> None:
        def copies(record: Record) -> list[Record]:
            return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(record.payload["n"])]

        outcome = await run(copies, records=4)

        assert outcome.numbers == [10, 20, 21, 30, 31, 32]
        assert outcome.batches == [
            [
                MessageId("source", 1, ()),
                MessageId("source", 2, (0,)),
                MessageId("source", 2, (1,)),
                MessageId("source", 3, (0,)),
                MessageId("source", 3, (1,)),
                MessageId("source", 3, (2,)),
            ]
        ]

    async def test_of_pieces_nest(self, autojump_clock: MockClock) -> None:
        def in_three(record: Record) -> list[Record]:
            return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(3)]

        def last_in_two(record: Record) -> list[Record]:
            n = record.payload["n"]
            return [Record.of({"n": n * 10}), Record.of({"n": n * 10 + 1})] if n == 12 else [record]

        outcome = await run(in_three, last_in_two, records=2)

        assert outcome.numbers == [0, 1, 2, 10, 11, 120, 121]
        assert [message[1:] for message in outcome.batches[0]] == [
            (0, (0,)),
            (0, (1,)),
            (0, (2,)),
            (1, (0,)),
            (1, (1,)),
            (1, (2, 0)),
            (1, (2, 1)),
        ]

    async def test_pieces_can_be_filtered_and_refused_one_by_one(self, autojump_clock: MockClock) -> None:
        def in_four(record: Record) -> list[Record]:
            return [Record.of({"n": record.payload["n"] * 10 + piece}) for piece in range(4)]

        def choose(record: Record) -> Record | None:
            if record.payload["n"] == 12:
                raise RecordRefused("twelve")
            return None if record.payload["n"] % 10 == 1 else record

        outcome = await run(in_four, choose, records=3)

        assert outcome.state.status is Status.COMPLETED
        assert outcome.numbers == [0, 2, 3, 10, 13, 20, 22, 23]
        [letter] = outcome.letters
        assert (letter.message, letter.record.payload["n"], letter.position) == (MessageId("source", 1, (2,)), 12, b"1")

    async def test_all_pieces_filtered_settles_the_record(self, autojump_clock: MockClock) -> None:
        outcome = await run(lambda record: [record, record.copy()], lambda record: None)

        assert outcome.state.status is Status.COMPLETED
        assert outcome.numbers == []

    async def test_the_same_record_twice_in_a_list_becomes_two_that_share_nothing(
        self, autojump_clock: MockClock
    ) -> None:
        def twice(record: Record) -> list[Record]:
            return [record, record]

        def number(record: Record) -> Record:
            record.payload["met"] = record.payload.get("met", 0) + 1
            return record

        outcome = await run(twice, number, records=2)

        assert outcome.numbers == [0, 0, 1, 1]
        assert [record.payload["met"] for record in outcome.written] == [1, 1, 1, 1]


class TestPositions:
    """Destinations may rely on a record's position, no matter which code made the record."""

    @pytest.mark.parametrize("filtering", [False, True])
    async def test_a_new_record_without_one_gets_that_of_the_record_it_replaces(
        self, filtering: bool, autojump_clock: MockClock
    ) -> None:
        def replace(record: Record) -> Record | None:
            n = record.payload["n"]
            return None if filtering and n == 0 else Record.of({"n": n})

        outcome = await run(replace, records=3)

        expected = [b"1", b"2"] if filtering else [b"0", b"1", b"2"]
        assert [record.position for record in outcome.written] == expected

    async def test_pieces_get_that_of_the_whole_but_keep_one_of_their_own(self, autojump_clock: MockClock) -> None:
        def split(record: Record) -> list[Record]:
            return [Record.of({"n": 0}), Record.of({"n": 1}, position=b"own")]

        outcome = await run(split, records=2)

        assert [record.position for record in outcome.written] == [b"0", b"own", b"1", b"own"]

    async def test_a_replaced_position_does_not_change_what_is_acked(self, autojump_clock: MockClock) -> None:
        def forge(record: Record) -> Record:
            record.position = b"forged"
            return record

        outcome = await run(forge, records=3)

        assert outcome.log.acked["source"] == [b"0", b"1", b"2"]


class TestBrokenContracts:
    """A processor that breaks its contract ends the run with an error that names it and the rule."""

    @pytest.mark.parametrize(
        ("function", "rule"),
        [
            (lambda batch: [], "returned 0 results for a batch of 6 records"),
            (lambda batch: [*batch, *batch], "returned 12 results for a batch of 6 records"),
            (lambda batch: 7, "must return one result per record of the batch, not int"),
            (lambda batch: None, "must return one result per record of the batch, not NoneType"),
            (lambda batch: [7] * len(batch), "returned int: return a Record, None or a list of Records, or raise"),
            (
                lambda batch: [[record, "x"] for record in batch],
                "returned str: return a Record, None or a list of Records, or raise",
            ),
        ],
    )
    async def test_by_a_batch_function(
        self, function: Callable[[Batch], Any], rule: str, autojump_clock: MockClock
    ) -> None:
        outcome = await run(Processor("sloppy", processor(batch=True)(function)))

        assert outcome.state.status is Status.DEGRADED
        assert outcome.state.error is not None
        assert outcome.state.error.code == "contract.broken"
        assert outcome.error == (f"sloppy: {rule}", "sloppy")
        assert outcome.log.acked["source"] == []

    async def test_by_taking_records_out_of_the_batch_it_was_given(self, autojump_clock: MockClock) -> None:
        @processor(batch=True)
        def take_out(batch: Batch) -> list[Record]:
            batch.records.pop()
            return batch.records

        outcome = await run(take_out)

        assert outcome.error == ("take_out: returned 5 results for a batch of 6 records", "take_out")

    @pytest.mark.parametrize("result", [7, "text", (), {}, b""])
    async def test_by_a_function_of_one_record(self, result: object, autojump_clock: MockClock) -> None:
        outcome = await run(Processor("sloppy", cast("Any", lambda record: result)))

        kind = type(result).__name__
        assert outcome.error == (
            f"sloppy: returned {kind}: return a Record, None or a list of Records, or raise",
            "sloppy",
        )

    async def test_by_a_result_of_another_type_and_the_error_names_file_and_line(
        self, autojump_clock: MockClock
    ) -> None:
        def sloppy(record: Record) -> Any:
            return 7

        outcome = await run(Processor("sloppy", sloppy))

        assert outcome.state.error is not None
        assert outcome.state.error.suggestion == f"see sloppy at {__file__}:{sloppy.__code__.co_firstlineno}"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_fatal_error_ends_the_run_in_the_name_of_the_processor_that_raised_it(
    workers: int, autojump_clock: MockClock
) -> None:
    async def give_up(record: Record) -> Record:
        if record.payload["n"] == 3:
            raise FatalError("the licence has expired")
        return record

    outcome = await run(lambda record: record, Processor("licensed", give_up, workers=workers), batch_size=2)

    assert outcome.state.status is Status.DEGRADED
    assert outcome.error == ("the licence has expired", "licensed")
    assert set(outcome.log.acked["source"]) <= {b"0", b"1"}
