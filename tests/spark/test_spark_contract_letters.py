"""Dead letters, promised of both engines: what is in them, who gets them, and how many there may be."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from conduit_connectors import memory
from engine_world import EVERY_WAY, World, kept, lines_of, no_good, sorted_out

from conduit_py import pipeline as p
from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import RecordRefused
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

SMALL = TransactionLimits(max_records=100)


def refusing(*numbers: int) -> Any:
    def judge(record: Record) -> Record:
        if record.payload["n"] in numbers:
            raise RecordRefused(f"no {record.payload['n']}")
        return record

    return judge


def delivered_in_order(numbers: list[int], world: World) -> list[int]:
    """These numbers without what a change to writing record by record has repeated: parts written and not yet acked."""
    in_order = next((place for place, number in enumerate(numbers) if number != place), len(numbers))
    if not world.prepares or in_order == len(numbers) or numbers[in_order] > in_order:
        return numbers
    return numbers[: numbers[in_order]] + numbers[in_order:]


@EVERY_WAY
async def test_without_a_handler_the_first_refused_record_stops_it(world: World) -> None:
    """All before it are delivered and acked, and the next run begins with it."""
    world.write(range(500))
    store = MemoryStore()

    state = await world.run(world.pipeline(refusing(300, 400), dead_letters=p.DeadLetters("stop")), store)
    delivered = world.numbers()
    again = await world.run(world.pipeline(refusing(), dead_letters=p.DeadLetters("stop")), store)

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert (state.error.code, state.error.node) == ("dead_letter.not_allowed", "judge")
    assert state.error.message == "judge refused a record: no 300"
    assert delivered_in_order(delivered, world)[:300] == list(range(300))
    assert again.status is Status.COMPLETED, again.error
    # What was on its way behind it may have arrived before: at least once, in order.
    assert world.numbers()[len(delivered) :] == list(range(300, 500))


async def test_dropped_letters_are_counted(world: World) -> None:
    world.write(range(500))
    supervisor = world.supervisor(world.pipeline(sorted_out, dead_letters=p.DeadLetters("drop")))

    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == kept(range(500))
    assert (supervisor.progress().dead_letters, supervisor.progress().acked) == (len(no_good(range(500))), 500)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_callable_is_given_every_letter_in_order(world: World, kind: str) -> None:
    world.write(range(500))
    letters: list[DeadLetter] = []

    async def keep(letter: DeadLetter) -> None:
        letters.append(letter)

    def twice(record: Record) -> list[Record]:
        return [record, Record.of({"n": record.payload["n"], "again": True})]

    def picky(record: Record) -> Record:
        if record.payload["n"] % 100 == 50 and "again" in record.payload:
            raise ValueError("once is enough")
        return record

    handler = keep if kind == "async" else letters.append
    state = await world.run(world.pipeline(twice, picky, dead_letters=p.DeadLetters(handler)))

    assert state.status is Status.COMPLETED, state.error
    assert [(each.record.payload["n"], each.message.source, each.message.piece) for each in letters] == [
        (n, "in", (1,)) for n in range(50, 500, 100)
    ]
    assert {(each.pipeline, each.node, each.error) for each in letters} == {
        ("numbers", "picky", "ValueError: once is enough")
    }
    # A position is that of the record, not of whatever it travelled with.
    assert len({each.position for each in letters}) == len(letters)
    assert world.numbers().count(50) == 1
    assert world.numbers().count(51) == 2


async def test_a_letter_that_cannot_be_kept_stops_it_and_its_record_is_never_acked(world: World) -> None:
    world.write(range(500))
    store = MemoryStore()
    flooded = [True]
    stored: list[int] = []

    def keep(letter: DeadLetter) -> None:
        if flooded[0] and letter.record.payload["n"] == 300:
            raise OSError("the cellar is flooded")
        stored.append(letter.record.payload["n"])

    pipeline = world.pipeline(refusing(10, 300, 301), dead_letters=p.DeadLetters(keep))
    state = await world.run(pipeline, store)
    flooded[0] = False
    again = await world.run(pipeline, store)

    assert state.status is Status.DEGRADED
    assert state.error is not None
    assert state.error.code == "dead_letter.failed"
    assert "flooded" in state.error.message
    assert "no 300" in state.error.message
    assert again.status is Status.COMPLETED, again.error
    assert stored == [10, 300, 301]
    assert sorted(set(world.numbers())) == [n for n in range(500) if n not in (10, 300, 301)]


@EVERY_WAY
async def test_records_that_a_destination_refuses_are_letters_of_it(world: World) -> None:
    world.write(range(500))

    def raw(record: Record) -> Record:
        return record if record.payload["n"] % 200 != 99 else Record.of(b"raw", position=record.position)

    supervisor = world.supervisor(world.pipeline(raw))
    state = await supervisor.run()

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == [n for n in range(500) if n % 200 != 99]
    letters = world.rows("dead")
    assert [(letter["node"], letter["piece"]) for letter in letters] == [("out", [])] * 3
    assert all("raw bytes" in letter["error"] for letter in letters)
    [out] = [meter for meter in supervisor.progress().nodes if meter.node == "out"]
    assert (out.records, out.refused) == (497, 3)


async def test_what_a_destination_refuses_of_a_piece_is_found_by_single_records(world: World) -> None:
    """Only the driver can know of some refusals: then it goes back and writes by itself."""
    world.write(range(500))
    folder = world.folder

    class Picky(world.kind):  # type: ignore[misc, name-defined]
        def write(self, batch: Batch) -> Any:
            refused = {index: "no 300" for index, record in enumerate(batch) if record.payload["n"] == 300}
            super().write(batch.select([index for index in range(len(batch)) if index not in refused]))
            return refused

        def take(self, pieces: Sequence[bytes]) -> None:
            if b'"n":300}' in lines_of(folder, pieces):
                raise RecordRefused("no 300")
            super().take(pieces)

    state = await world.run(world.pipeline(destinations=[world.destination(kind=Picky)]))

    assert state.status is Status.COMPLETED, state.error
    assert list(dict.fromkeys(world.numbers())) == [n for n in range(500) if n != 300]
    [letter] = world.rows("dead")
    assert (letter["node"], letter["error"], letter["record"]["payload"]["after"]) == ("out", "no 300", {"n": 300})


async def test_lines_that_cannot_be_read_are_dead_letters_of_their_source(world: World) -> None:
    world.write(range(300))
    with world.path("in").open("a") as lines:
        lines.write("not json\n")
    world.write(range(300, 400))

    state = await world.run(world.pipeline())

    assert state.status is Status.COMPLETED, state.error
    assert world.numbers() == list(range(400))
    [letter] = world.rows("dead")
    assert letter["node"] == "in"


class TestWindow:
    """Of the last so many outcomes of a source, only so many may be refusals: by records, however they travel."""

    @pytest.mark.parametrize("ends", ["file", "memory"])
    async def test_the_letters_before_the_one_too_many_are_kept_and_it_is_not(self, world: World, ends: str) -> None:
        # Of 10 outcomes 2 may be refusals: 205, 214 and 215 are fine (214 is the tenth after 205), 223 is not.
        judge = refusing(205, 214, 215, 223, 330)
        letters = world.dead_letters(window_size=10, window_nack_threshold=2)
        pipeline = world.pipeline(judge, dead_letters=letters)
        world.write(range(400))
        if ends == "memory":
            pipeline.sources = [p.Source("in", memory.Source(records=[{"n": n} for n in range(400)]))]
        store = MemoryStore()

        state = await world.run(pipeline, store)

        assert state.status is Status.DEGRADED
        assert state.error is not None
        assert (state.error.code, state.error.node) == ("dead_letter.not_allowed", "judge")
        assert state.error.message == "too many records were refused; judge refused one more: no 223"
        assert world.refused() == [205, 214, 215]
        assert [n for n in range(205) if n not in world.numbers()] == []

    async def test_on_spark_a_part_with_one_letter_too_many_comes_again_as_a_whole(self, world: World) -> None:
        """Also the letters before it, which were kept; in an exactly-once pipeline nothing of it was there."""
        world.write(range(400))
        letters = world.dead_letters(window_size=10, window_nack_threshold=2)
        store = MemoryStore()

        first = await world.run(world.pipeline(refusing(215, 221, 222, 223), dead_letters=letters), store)
        delivered = len(world.rows())
        again = await world.run(world.pipeline(refusing(215, 221), dead_letters=letters), store)

        assert first.status is Status.DEGRADED
        assert again.status is Status.COMPLETED, again.error
        begins = world.numbers()[delivered]
        assert 100 < begins < 215 if world.prepares else begins == 222
        assert world.refused() == [215, 221] * (2 if world.prepares else 1)
        assert set(world.numbers()) == {*range(400)} - {215, 221}

    async def test_as_many_as_the_window_allows_pass_for_ever(self, world: World) -> None:
        refused = [n for n in range(500) if n % 5 in (0, 1)]
        world.write(range(500))
        letters = world.dead_letters(window_size=5, window_nack_threshold=2)

        state = await world.run(world.pipeline(refusing(*refused), dead_letters=letters))

        assert state.status is Status.COMPLETED, state.error
        assert world.refused() == refused

    async def test_every_source_has_one_of_its_own_and_pieces_are_one_outcome(self, world: World) -> None:
        world.write(range(300), "a")
        world.write(range(1000, 1300), "b")

        def in_two(record: Record) -> list[Record]:
            return [record, record.copy()]

        letters = world.dead_letters(window_size=10, window_nack_threshold=2)
        sources = [world.source("a"), world.source("b")]
        judge = refusing(250, 251, 1250, 1251)

        state = await world.run(world.pipeline(in_two, judge, sources=sources, dead_letters=letters))

        assert state.status is Status.COMPLETED, state.error
        assert sorted(world.refused()) == sorted([250, 251, 1250, 1251] * 2)

    async def test_filtered_records_are_outcomes_too(self, world: World) -> None:
        """Every tenth is refused and all others are filtered: with 11 outcomes in view two of those are seen."""

        def tens(record: Record) -> Record | None:
            if record.payload["n"] % 10 == 0:
                raise ValueError("a ten")
            return None

        world.write(range(400))
        for size, status, refused in ((11, Status.DEGRADED, [0]), (10, Status.COMPLETED, list(range(0, 400, 10)))):
            letters = world.dead_letters(window_size=size, window_nack_threshold=1)
            state = await world.run(world.pipeline(tens, dead_letters=letters))

            assert state.status is status, state.error
            assert _drain(world) == refused


def _drain(world: World) -> Iterable[int]:
    refused = world.refused()
    world.path("dead").write_text("")
    return refused


@EVERY_WAY
async def test_letters_of_a_transaction_are_there_once(world: World) -> None:
    """Exactly once: a transaction that fails takes its letters with it, and the next run writes them."""
    world.write(range(600))

    marker = world.path("out").with_suffix(".failed")

    class FailsOnce(world.kind):  # type: ignore[misc, name-defined]
        def stage(self) -> bytes | None:
            self._fail_once()
            staged: bytes | None = super().stage()
            return staged

        def commit(self, changes: bytes) -> None:
            """Of a table, which has the commit itself."""
            self._fail_once()
            super().commit(changes)

        def _fail_once(self) -> None:
            if not marker.exists():
                marker.touch()
                raise ConnectionError("not now")

    pipeline = world.pipeline(
        sorted_out, destinations=[world.destination(kind=FailsOnce)], delivery="exactly_once", transaction=SMALL
    )
    store = MemoryStore()
    state = await world.run(pipeline, store)
    if state.status is Status.DEGRADED:
        state = await world.run(pipeline, store)

    assert state.status is Status.COMPLETED, state.error
    assert marker.exists()
    assert world.numbers() == kept(range(600))
    assert world.refused() == no_good(range(600))
