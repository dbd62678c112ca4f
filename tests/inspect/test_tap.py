"""Taps: what they show of a node, how much, and that a pipeline never notices them."""

import itertools
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import file
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, Record, Source, processor
from conduit_py.backoff import Recovery
from conduit_py.errors import FatalError
from conduit_py.inspect.record_view import RecordCondition, fits_condition, view_schema
from conduit_py.inspect.tap import BUFFER_SIZE, RECORD_SIZE_MAX, Sample, Tap
from conduit_py.inspect.tap_point import Taps
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import AckMode, CollectionSchema, EndOfSource, Options, Reading, SchemaField, SourceConnector
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, Fail, Refuse, ScriptedDestination, ScriptedSource


@processor
def answer(record: Record) -> Record | list[Record] | None:
    """Keeps 0, filters 1, splits 2 in two, refuses 3, changes 4 in place, replaces 5."""
    number = record.payload["n"]
    if number == 1:
        return None
    if number == 2:
        return [Record.of({"n": 2, "half": half}) for half in "ab"]
    if number == 3:
        raise ValueError("three is too many")
    if number == 4:
        record.payload["seen"] = True
        record.payload["tags"].append("late")
    return Record.of({"n": 50}) if number == 5 else record


async def test_a_processor_of_payloads_shows_records(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n{"n": 2}\n')

    @processor
    def double(order: dict[str, int]) -> dict[str, int] | None:
        return {"n": 2 * order["n"]} if order["n"] > 1 else None

    pipeline = Pipeline(
        "p",
        sources=[Source("source", file.Source(path=tmp_path / "in.jsonl", format="json"))],
        processors=[double],
        destinations=[Destination("to", ScriptedDestination(log=EventLog()))],
    )
    status, samples = await tap_node(pipeline, "double")

    assert status is Status.COMPLETED
    assert [(sample.outcome, after_of(sample)) for sample in samples] == [("filtered", None), ("changed", [{"n": 4}])]


def records(count: int, **more: Any) -> list[Record]:
    return [Record.of({"n": n, "tags": [], **more}, position=b"%d" % n) for n in range(count)]


def made(
    log: EventLog, count: int = 6, *processors: Any, source: Any = None, to: Any = None, when: Any = None
) -> Pipeline:
    read = ScriptedSource(records=records(count), log=log, **(source or {}))
    return Pipeline(
        "p",
        sources=[Source("source", read, batch_size=6)],
        processors=processors,
        destinations=[Destination("to", ScriptedDestination(log=log, **(to or {})), when=when)],
        dead_letters=DeadLetters("drop"),
    )


async def tap_node(pipeline: Pipeline, node: str, **settings: Any) -> tuple[Status, list[Sample]]:
    """Run a pipeline with a tap on one node; how it ended and what the tap has kept."""
    taps, tap = Taps(), Tap(**settings)
    with taps.attach(node, tap):
        state = await Supervisor(pipeline, MemoryStore(), taps=taps).run()
    return state.status, kept(tap)


def kept(tap: Tap) -> list[Sample]:
    samples = []
    while (sample := tap.receive_nowait()) is not None:
        samples.append(sample)
    return samples


def after_of(sample: Sample) -> list[Any] | None:
    return None if sample.after is None else [each["payload"]["after"] for each in sample.after]


def before_of(sample: Sample) -> Any:
    return None if sample.before is None else sample.before["payload"]["after"]


async def test_a_processor_is_shown_before_and_after_with_the_outcome(autojump_clock: MockClock) -> None:
    status, samples = await tap_node(made(EventLog(), 6, answer), "answer")

    assert status is Status.COMPLETED
    assert [(sample.message.sequence, sample.position, sample.outcome) for sample in samples] == [
        (0, b"0", "passed"),
        (1, b"1", "filtered"),
        (2, b"2", "split"),
        (3, b"3", "refused"),
        (4, b"4", "changed"),
        (5, b"5", "changed"),
    ]
    assert [before_of(sample) for sample in samples] == [{"n": n, "tags": []} for n in range(6)]
    assert [after_of(sample) for sample in samples] == [
        [{"n": 0, "tags": []}],
        None,
        [{"n": 2, "half": "a"}, {"n": 2, "half": "b"}],
        None,
        [{"n": 4, "tags": ["late"], "seen": True}],
        [{"n": 50}],
    ]
    assert [sample.pieces for sample in samples] == [1, 1, 2, 1, 1, 1]
    assert [sample.error for sample in samples if sample.error] == ["ValueError: three is too many"]
    assert samples[5].after is not None
    assert samples[5].after[0]["position"] == "NQ=="


async def test_a_source_is_shown_as_read_and_as_refused(autojump_clock: MockClock) -> None:
    script = {1: Refuse("not JSON")}
    status, samples = await tap_node(made(EventLog(), 3, answer, source={"script": script}), "source")

    assert status is Status.COMPLETED
    assert [(sample.outcome, sample.error) for sample in samples] == [
        ("read", None),
        ("refused", "not JSON"),
        ("read", None),
    ]
    assert [before_of(sample) is None for sample in samples] == [True, False, True]
    # As it was read, whatever the processors after it have made of it since.
    assert [after_of(sample) for sample in samples] == [[{"n": 0, "tags": []}], None, [{"n": 2, "tags": []}]]


async def test_a_destination_is_shown_what_it_was_given_and_what_it_said(autojump_clock: MockClock) -> None:
    def wanted(record: Record) -> bool:
        if record.payload["n"] == 4:
            raise ZeroDivisionError("nothing can be divided")
        return True

    script = {1: Refuse("no such customer")}
    pipeline = made(EventLog(), 6, to={"script": script}, when=wanted)
    _, samples = await tap_node(pipeline, "to")

    assert [(sample.message.sequence, sample.outcome, sample.error) for sample in samples] == [
        (0, "written", None),
        (1, "refused", "no such customer"),
        (2, "written", None),
        (3, "written", None),
        (4, "refused", "ZeroDivisionError: nothing can be divided"),
        (5, "written", None),
    ]
    assert [before_of(sample)["n"] for sample in samples] == list(range(6))
    assert all(sample.after is None for sample in samples)


async def test_records_that_the_condition_of_a_destination_sends_elsewhere_are_filtered(
    autojump_clock: MockClock,
) -> None:
    _, samples = await tap_node(made(EventLog(), 4, when=lambda record: record.payload["n"] % 2), "to")

    assert [sample.outcome for sample in samples] == ["filtered", "written", "filtered", "written"]


async def test_a_refusal_that_comes_later_is_shown_when_it_comes(autojump_clock: MockClock) -> None:
    to = {"acks": AckMode.LATER, "script": {1: Refuse("the disk is full")}}
    _, samples = await tap_node(made(EventLog(), 3, to=to), "to")

    assert [(sample.message.sequence, sample.outcome, sample.error) for sample in samples] == [
        (0, "written", None),
        (1, "written", None),
        (2, "written", None),
        (1, "refused", "the disk is full"),
    ]


async def test_what_ends_a_run_is_shown_too(autojump_clock: MockClock) -> None:
    @processor
    def fatal(record: Record) -> Record:
        raise FatalError("the licence has expired")

    stopped, of_processor = await tap_node(made(EventLog(), 2, fatal), "fatal")
    script = {0: Fail("down", error=FatalError)}
    failed, of_destination = await tap_node(made(EventLog(), 2, to={"script": script}), "to")

    assert (stopped, failed) == (Status.DEGRADED, Status.DEGRADED)
    assert [(sample.outcome, sample.error) for sample in of_processor] == [("failed", "the licence has expired")] * 2
    assert [(sample.outcome, sample.error) for sample in of_destination] == [("failed", "down")] * 2


async def test_pieces_are_distinguished_downstream(autojump_clock: MockClock) -> None:
    _, samples = await tap_node(made(EventLog(), 3, answer), "to")

    assert [(sample.message.sequence, sample.message.piece) for sample in samples] == [(0, ()), (2, (0,)), (2, (1,))]


async def test_no_more_than_the_rate_is_taken_and_the_rest_counted(autojump_clock: MockClock) -> None:
    slow = processor(name="slow")(_pause)
    pipeline = made(EventLog(), 200, slow, source={"chunks": [1]})
    taps, tap = Taps(), Tap(rate=4)
    seen: list[tuple[float, Sample]] = []

    async def read() -> None:
        while True:
            sample = await tap.receive()
            seen.append((trio.current_time(), sample))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with taps.attach("slow", tap):
            await Supervisor(pipeline, MemoryStore(), taps=taps).run()
        nursery.cancel_scope.cancel()

    times = [time for time, _ in seen]
    assert 36 <= len(times) <= 44
    assert all(later - earlier >= 1 for earlier, later in zip(times, times[4:], strict=False))
    assert sum(1 + sample.skipped for _, sample in seen) <= 200
    assert sum(1 + sample.skipped for _, sample in seen) > 170
    assert tap.dropped == 0


async def _pause(record: Record) -> Record:
    """Lets 20 records a second pass."""
    await trio.sleep(0.05)
    return record


async def test_a_tap_that_nobody_reads_keeps_few_and_counts_the_rest(autojump_clock: MockClock) -> None:
    taps, tap, log = Taps(), Tap(rate=1000), EventLog()
    with taps.attach("to", tap):
        state = await Supervisor(made(log, 600), MemoryStore(), taps=taps).run()

    assert state.status is Status.COMPLETED
    assert len(log.acked["source"]) == 600
    assert len(kept(tap)) == BUFFER_SIZE
    assert tap.dropped == taps.point("to").dropped == 600 - BUFFER_SIZE


async def test_a_tap_takes_no_more_than_its_limit(autojump_clock: MockClock) -> None:
    _, samples = await tap_node(made(EventLog(), 60), "to", rate=1000, limit=7)

    assert [sample.message.sequence for sample in samples] == list(range(7))


async def test_a_tap_outlives_runs_and_is_attached_before_the_first(autojump_clock: MockClock) -> None:
    log, tap = EventLog(), Tap(rate=100)
    script = {3: Fail("link down")}
    async with trio.open_nursery() as nursery:
        fleet = Fleet(MemoryStore(), nursery, recovery=Recovery(delay_seconds=1, delay_max_seconds=1))
        member = await fleet.add(made(log, 6, to={"script": script}))
        with member.taps.attach("source", tap):
            fleet.start("p")
            await member.ended.wait()

    progress = member.progress()
    assert progress is not None
    assert progress.recoveries == 1
    assert [sample.position for sample in kept(tap)] == [b"%d" % n for n in range(6)] * 2


async def test_one_that_left_sees_nothing_more(autojump_clock: MockClock) -> None:
    taps, left, stays = Taps(), Tap(), Tap()
    with taps.attach("to", stays):
        with taps.attach("to", left):
            pass
        await Supervisor(made(EventLog(), 3), MemoryStore(), taps=taps).run()

    assert (len(kept(left)), len(kept(stays))) == (0, 3)
    assert taps.point("to").taps == []


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


async def test_a_value_that_cannot_be_shown_is_no_concern_of_the_pipeline(autojump_clock: MockClock) -> None:
    @processor
    def odd(record: Record) -> Record:
        record.payload["odd"] = Unprintable()
        return record

    status, samples = await tap_node(made(EventLog(), 2, odd), "odd")

    assert status is Status.COMPLETED
    assert [after_of(sample) for sample in samples] == [
        [{"n": n, "tags": [], "odd": "<Unprintable without a repr>"}] for n in range(2)
    ]


class Growing(SourceConnector[Options]):
    """A table that gets a column after two rows."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._next = 0

    async def read(self, n: int) -> Reading:
        await trio.lowlevel.checkpoint()
        if self._next == 4:
            raise EndOfSource
        names = ["id", "secret-word"][: 1 + self._next // 2]
        schema = CollectionSchema(
            "orders", str(len(names)), tuple(SchemaField(name, "integer", key=name == "id") for name in names)
        )
        self._next += 1
        made = Record.of({"n": self._next}, position=b"%d" % self._next)
        made.metadata = {"opencdc.collection": "orders"}
        return Reading([made], schemas=[schema] if self._next in (1, 3) else [])


def growing() -> Pipeline:
    return Pipeline("p", sources={"source": Growing()}, destinations={"to": ScriptedDestination(log=EventLog())})


async def test_the_schema_that_a_source_announced_is_shown_once_per_version(autojump_clock: MockClock) -> None:
    for node in ("source", "to"):
        status, samples = await tap_node(growing(), node, redact=lambda text: text.replace("secret", "***"))

        assert status is Status.COMPLETED
        shown = [sample.source_schema for sample in samples]
        assert [schema and schema["version"] for schema in shown] == ["1", None, "2", None]
        assert shown[2] is not None
        assert (shown[2]["collection"], [each["name"] for each in shown[2]["fields"]]) == ("orders", ["id", "***-word"])
        assert shown[2]["fields"][0] == {"name": "id", "type": "integer", "nullable": True, "key": True, "native": ""}


async def test_a_schema_whose_sample_was_dropped_comes_with_a_later_one(autojump_clock: MockClock) -> None:
    taps, tap = Taps(), Tap(rate=1000)
    fill = ScriptedSource(records=records(BUFFER_SIZE), log=EventLog())
    first = Pipeline("p", sources={"source": fill}, destinations={"to": ScriptedDestination(log=EventLog())})
    with taps.attach("source", tap):
        await Supervisor(first, MemoryStore(), taps=taps).run()
        await Supervisor(growing(), MemoryStore(), taps=taps).run()
        assert tap.dropped == 4
        assert all(sample.source_schema is None for sample in kept(tap))
        await Supervisor(growing(), MemoryStore(), taps=taps).run()

    assert [sample.source_schema is not None for sample in kept(tap)] == [True, False, True, False]


def test_a_schema_of_any_size_is_shown_in_part() -> None:
    fields = tuple(SchemaField(f"column {n}" * 10, "string") for n in range(5000))
    view = view_schema(CollectionSchema("orders", "1", fields), RECORD_SIZE_MAX, str)

    assert "source_schema.fields" in view.cut
    assert len(str(view.value)) < 8 * RECORD_SIZE_MAX


async def test_a_condition_has_no_more_than_its_share_of_time(autojump_clock: MockClock) -> None:
    asked: list[int] = []

    def when(record: Record) -> bool:
        asked.append(record.payload["n"])
        return False

    clock = itertools.count(step=RecordCondition.SECONDS / 20)
    condition = RecordCondition(when, str, clock=lambda: float(next(clock)))
    some = records(100)

    assert condition.find(some.__getitem__, 100, 100) == []
    assert len(asked) in (20, 21)
    await trio.sleep(1)
    assert condition.find(some.__getitem__, 100, 100) == []
    assert len(asked) in (40, 41, 42)


def test_a_record_with_a_secret_fits_no_condition() -> None:
    def redact(text: str) -> str:
        return text.replace("swordfish", "***")

    assert fits_condition(Record.of({"a": "x"}), lambda _: True, redact)
    assert not fits_condition(Record.of({"a": [{"b": "a swordfish"}]}), lambda _: True, redact)
    assert not fits_condition(Record.of(b"swordfish"), lambda _: True, redact)
    assert not fits_condition(Record(metadata={"a": "swordfish"}), lambda _: True, redact)
