"""Record groups: one message for many records, which are still counted, refused and dead-lettered one by one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from trio.testing import MockClock

from conduit_py import DeadLetter, DeadLetters, Destination, Pipeline, Processor, Record, Source, processor, sdk
from conduit_py.batch import Batch, MessageId
from conduit_py.dead_letter import Failure, RefusedWithLetter
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import derive
from conduit_py.record import Payload, RecordGroup
from conduit_py.sdk.processor import Result
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

SIZE = 10


class Groups(sdk.SourceConnector[sdk.Options]):
    """Groups of ten records each: group 2 has those from 20 on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._next = 0

    def fresh(self) -> "Groups":
        return Groups(self._count)

    async def open(self, position: bytes | None) -> None:
        self._next = 0 if position is None else int(position) // SIZE + 1

    async def read(self, n: int) -> list[Record]:
        if self._next == self._count:
            raise sdk.EndOfSource
        first, self._next = self._next, min(self._count, self._next + n)
        return [_group(number) for number in range(first, self._next)]


def _group(number: int) -> RecordGroup:
    last = number * SIZE + SIZE - 1
    return RecordGroup(position=b"%d" % last, payload=Payload(after=b"%d" % number), size=SIZE)


class Taker(sdk.DestinationConnector[sdk.Options]):
    """Keeps the groups that it takes."""

    def __init__(self, taken: list[bytes]) -> None:
        super().__init__()
        self._taken = taken

    def fresh(self) -> "Taker":
        return self

    def write(self, batch: Batch) -> None:
        raise AssertionError("groups are taken, not written")

    def take(self, groups: Sequence[bytes]) -> None:
        self._taken += groups


class Taking:
    """A WriteAdapter that gives groups to `take`."""

    whole = True

    def asks_when(self, batch: Batch) -> bool:
        return False

    def bind(self, call: Callable[..., Awaitable[Any]]) -> Callable[[Batch], Awaitable[Any]]:
        return lambda batch: call("take", [record.payload.after for record in batch])


def refusing(*numbers: int) -> list[Processor]:
    """Reports these records as refused elsewhere, each as a piece of its group."""

    @processor
    def split(record: Record) -> Record | list[Record]:
        mine = [number for number in numbers if number // SIZE == int(_text(record))]
        return [record, *(_refused(record, number) for number in mine)] if mine else record

    def report(batch: Batch) -> list[Result]:
        return [_reported(batch, index) or record for index, record in enumerate(batch)]

    return [Processor("split", split), Processor("report", processor(batch=True)(report))]


def _text(record: Record) -> bytes:
    assert isinstance(record.payload.after, bytes)
    return record.payload.after


def _refused(record: Record, number: int) -> RecordGroup:
    return RecordGroup(position=record.position, payload=Payload(after=b"refused %d" % number), size=SIZE)


def _reported(batch: Batch, index: int) -> RefusedWithLetter | None:
    text = _text(batch[index])
    if not text.startswith(b"refused"):
        return None
    number = int(text.split()[1])
    plain = Record.of({"n": number}, position=b"%d" % number)
    message = MessageId(batch.span.source, batch.sequences[index])
    letter = DeadLetter("p", message, plain.position, plain, [Failure("there", f"no {number}")])
    letter.record_index = number % SIZE
    return RefusedWithLetter(letter)


class World:
    """A pipeline of groups and what came of it."""

    def __init__(self, *refused: int, window: int = 0, threshold: int = 0, groups: int = 4) -> None:
        self.letters: list[DeadLetter] = []
        self.taken: list[bytes] = []
        self.store = MemoryStore()
        out = Destination("out", Taker(self.taken))
        pipeline = Pipeline(
            "p",
            sources=[Source("in", Groups(groups), batch_size=1)],
            processors=refusing(*refused),
            destinations=[derive(out, write_adapter=Taking())],
            dead_letters=DeadLetters(self.keep, window_size=window, window_nack_threshold=threshold),
        )
        self.supervisor = Supervisor(pipeline, self.store)

    async def keep(self, letter: DeadLetter) -> None:
        self.letters.append(letter)


async def test_records_are_counted_not_groups(autojump_clock: MockClock) -> None:
    world = World()
    state = await world.supervisor.run()
    assert state.status is Status.COMPLETED, state.error
    assert world.taken == [b"0", b"1", b"2", b"3"]
    progress = world.supervisor.progress()
    assert (progress.read, progress.acked) == (40, 40)
    assert [meter.records for meter in progress.nodes if meter.kind == "destination"] == [40]
    assert await world.store.positions("p") == {"in": b"39"}


async def test_each_refused_record_has_a_letter_at_its_own_position_in_order(autojump_clock: MockClock) -> None:
    world = World(3, 17, 11, 12)
    state = await world.supervisor.run()
    assert state.status is Status.COMPLETED, state.error
    assert [letter.position for letter in world.letters] == [b"3", b"11", b"12", b"17"]
    assert [letter.record.payload["n"] for letter in world.letters] == [3, 11, 12, 17]
    assert world.taken == [b"0", b"1", b"2", b"3"]
    assert world.supervisor.progress().dead_letters == 4


@pytest.mark.parametrize(
    ("refused", "window", "threshold", "stops"),
    [
        ([5, 9], 5, 1, True),
        ([4, 9], 5, 1, False),
        ([9, 10], 2, 1, True),
        ([8, 10], 2, 1, False),
        ([1, 2, 3], 3, 2, True),
        ([1, 2, 4], 3, 2, False),
        ([19, 25, 31], 13, 2, True),
        ([19, 25, 32], 13, 2, False),
    ],
)
async def test_the_window_counts_records_where_they_were(
    refused: list[int], window: int, threshold: int, stops: bool, autojump_clock: MockClock
) -> None:
    world = World(*refused, window=window, threshold=threshold)
    state = await world.supervisor.run()
    assert (state.status is Status.DEGRADED) == stops, state
    if stops:
        # Nothing of the group with the record too many is acked: it comes again as a whole.
        kept = await world.store.positions("p")
        assert kept == ({"in": b"%d" % (refused[-1] // SIZE * SIZE - 1)} if refused[-1] >= SIZE else {})
