"""The journal connector: acceptance, exact positions, transactions, fences, values, isolation."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from conduit_connectors import journal
from conduit_connectors.journal.position import JournalPosition

from conduit_py.journal.errors import JournalDamaged
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.frame import decode_body, encode_body
from conduit_py.journal.message_id import NO_ID
from conduit_py.journal.transactions import Publisher
from conduit_py.sdk import EndOfSource, FatalError, Fenced, NothingYet, Operation, Payload, Record, RecordRefused
from conduit_py.testing import destination_acceptance, source_acceptance
from conduit_py.testing.connector_driver import batch_of


def read(source: journal.Source, n: int = 1000) -> list[Record]:
    """Everything there is now."""
    records: list[Record] = []
    try:
        while True:
            found = source.read(n)
            assert isinstance(found, list)
            assert 0 < len(found) <= n
            records += found
    except (NothingYet, EndOfSource):
        return records


def opened(path: Path, position: bytes | None = None, **options: Any) -> journal.Source:
    source = journal.Source(path=path, **options)
    source.open(position)
    return source


def writing(path: Path, owner: str = "orders", fence: int = 1, intents: tuple[bytes, ...] = ()) -> journal.Destination:
    destination = journal.Destination(path=path)
    destination.open()
    destination.begin(owner, fence, intents)
    return destination


def numbers(first: int, stop: int) -> list[Record]:
    return [Record.of({"n": number}, position=b"%d" % number) for number in range(first, stop)]


def values(records: list[Record]) -> list[int]:
    return [record.payload["n"] for record in records]


def a_journal(tmp_path: Path) -> Iterator[journal.Source]:
    destination = writing(tmp_path / "j")
    for first in range(0, 40, 10):
        destination.write(batch_of(numbers(first, first + 5)))
        destination.write(batch_of(numbers(first + 5, first + 10)))
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)
    destination.teardown()
    yield journal.Source(path=tmp_path / "j", until="end")


def a_journal_to_tail(tmp_path: Path) -> Iterator[journal.Source]:
    for made in a_journal(tmp_path):
        yield journal.Source(path=made.options.path)


def uncommitted(tmp_path: Path) -> Iterator[journal.Source]:
    for made in a_journal(tmp_path):
        yield journal.Source(path=made.options.path, until="end", isolation="uncommitted")


TestJournalSource = source_acceptance(a_journal)
TestTailingJournalSource = source_acceptance(a_journal_to_tail, records=40)
TestUncommittedJournalSource = source_acceptance(uncommitted)


@pytest.mark.parametrize("isolation", ["committed", "uncommitted"])
@pytest.mark.parametrize("size", [1, 300, 1000, 100_000])
def test_the_parts_of_a_journal_are_the_journal(tmp_path: Path, isolation: Any, size: int) -> None:
    """Of two writers whose transactions overlap, one that never committed, and messages without ids."""
    path = tmp_path / "j"
    one, other = writing(path), writing(path, owner="other")
    left = writing(path, owner="left")
    for first in range(0, 60, 20):
        one.write(batch_of(numbers(first, first + 5)))
        other.write(batch_of(numbers(first + 10, first + 15)))
        left.write(batch_of(numbers(first + 1000, first + 1003)))
        one.write(batch_of(numbers(first + 5, first + 10)))
        for each in (other, one):
            intent = each.stage()
            assert intent is not None
            each.apply(intent)
    assert left.stage() is not None
    with FileLog(path) as log:
        log.append([encode_body(record) for record in numbers(60, 64)])
    options: dict[str, Any] = {"until": "end", "isolation": isolation}
    whole = read(opened(path, **options))

    assert sorted(values(whole))[:34] == [*range(15), *range(20, 35), *range(40, 44)]
    for place in (None, 0, 3, 14, 33, len(whole) - 1):
        start = None if place is None else whole[place].position
        rest = whole if place is None else whole[place + 1 :]
        parts = split_all(opened(path, start, **options), size)
        assert values([record for part in parts for record in read_part(path, part, options)]) == values(rest)
        # A part of another engine may have been the last: every position of a part goes on exactly.
        for record in [record for part in parts for record in read_part(path, part, options)][::7]:
            after = values(rest)[values(rest).index(record.payload["n"]) + 1 :]
            assert values(read(opened(path, record.position, **options))) == after
    assert len(split_all(opened(path, **options), 1)) > 4


def split_all(source: journal.Source, size: int) -> list[bytes]:
    parts: list[bytes] = []
    try:
        while True:
            parts.append(source.split(size))
    except EndOfSource:
        source.teardown()
        return parts


def read_part(path: Path, part: bytes, options: dict[str, Any]) -> list[Record]:
    source = journal.Source(path=path, **options)
    source.open_part(part)
    found = read(source, 3)
    source.teardown()
    return found


def test_only_a_journal_with_an_end_is_split(tmp_path: Path) -> None:
    assert journal.Source(path=tmp_path, until="end").splits()
    assert "waits for more" in str(journal.Source(path=tmp_path).reads_alone())


def a_destination(tmp_path: Path) -> tuple[journal.Destination, Callable[[], list[Any]]]:
    path = tmp_path / "deep" / "journal"
    return journal.Destination(path=path), lambda: [record.payload.after for record in read(opened(path))]


TestJournalDestination = destination_acceptance(a_destination, refused=Record.of({"what": object()}))


def test_records_are_seen_when_their_transaction_is_applied(tmp_path: Path) -> None:
    source, destination = opened(tmp_path), writing(tmp_path)
    destination.write(batch_of(numbers(0, 3)))
    assert read(source) == []
    intent = destination.stage()
    assert intent is not None
    assert read(source) == []
    assert values(read(opened(tmp_path, isolation="uncommitted"))) == [0, 1, 2]

    destination.apply(intent)
    assert values(read(source)) == [0, 1, 2]
    destination.apply(intent)
    assert read(source) == []


def test_a_stage_without_records_has_no_intent(tmp_path: Path) -> None:
    destination = writing(tmp_path)

    assert destination.stage() is None
    destination.write(batch_of([Record.of({"bad": object()})]))
    assert destination.stage() is None


def test_a_stage_that_was_committed_is_shown_by_the_next_run_and_one_that_was_not_never(tmp_path: Path) -> None:
    first = writing(tmp_path, fence=1)
    first.write(batch_of(numbers(0, 3)))
    committed = first.stage()
    assert committed is not None
    first.teardown()

    second = writing(tmp_path, fence=2, intents=(committed,))
    second.write(batch_of(numbers(100, 103)))
    assert second.stage() is not None
    second.teardown()

    # It was killed before its commit, so the next run is given the same intent again.
    third = writing(tmp_path, fence=3, intents=(committed,))
    third.write(batch_of(numbers(3, 5)))
    intent = third.stage()
    assert intent is not None
    third.apply(intent)

    source = opened(tmp_path)
    assert values(read(source)) == [0, 1, 2, 3, 4]
    assert source._committed is not None
    assert not source._committed.sequencer.pending


def test_readers_forget_the_producers_of_earlier_runs(tmp_path: Path) -> None:
    for fence in range(1, 30):
        destination = writing(tmp_path, fence=fence)
        destination.write(batch_of(numbers(fence, fence + 1)))
        if fence == 29:
            intent = destination.stage()
            assert intent is not None
            destination.apply(intent)
        destination.teardown()

    (record,) = read(opened(tmp_path))
    assert record.payload["n"] == 29
    assert len(JournalPosition.decode(record.position).checkpoint.producers) == 1


def test_a_zombie_can_neither_write_nor_apply(tmp_path: Path) -> None:
    zombie = writing(tmp_path, fence=1)
    zombie.write(batch_of(numbers(0, 3)))
    intent = zombie.stage()
    assert intent is not None
    current = writing(tmp_path, fence=2)

    with pytest.raises(Fenced, match="a newer writer took over"):
        zombie.write(batch_of(numbers(3, 6)))
    with pytest.raises(Fenced):
        zombie.apply(intent)
    with pytest.raises(Fenced, match="under fence 2, and this is fence 1"):
        writing(tmp_path, fence=1)
    current.write(batch_of(numbers(6, 8)))
    applied = current.stage()
    assert applied is not None
    current.apply(applied)
    assert values(read(opened(tmp_path))) == [6, 7]


def test_pipelines_that_share_a_journal_do_not_fence_each_other(tmp_path: Path) -> None:
    one, other = writing(tmp_path, "one", 7), writing(tmp_path, "other", 1)
    for number, destination in enumerate([one, other, one, other]):
        destination.write(batch_of(numbers(number, number + 1)))
    for destination in (other, one):
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)

    assert values(read(opened(tmp_path))) == [1, 3, 0, 2]


def test_outside_of_exactly_once_records_are_seen_at_once_and_durable_at_flush(tmp_path: Path) -> None:
    source, destination = opened(tmp_path), journal.Destination(path=tmp_path)
    destination.open()
    destination.write(batch_of(numbers(0, 3)))
    destination.flush()

    assert values(read(source)) == [0, 1, 2]


@pytest.mark.parametrize("isolation", ["committed", "uncommitted"])
@pytest.mark.parametrize("n", [1, 3, 1000])
def test_reading_goes_on_exactly_after_any_record(tmp_path: Path, isolation: str, n: int) -> None:
    one, other, plain = writing(tmp_path, "one"), writing(tmp_path, "other"), journal.Destination(path=tmp_path)
    plain.open()
    for first in range(0, 60, 20):
        one.write(batch_of(numbers(first, first + 5)))
        other.write(batch_of(numbers(first + 5, first + 10)))
        one.write(batch_of(numbers(first + 10, first + 14)))
        plain.write(batch_of(numbers(first + 14, first + 17)))
        intents = [one.stage(), other.stage()]
        assert intents[0] is not None
        assert intents[1] is not None
        one.apply(intents[0])
        other.apply(intents[1])
    with FileLog(tmp_path) as log:
        log.append([encode_body(record) for record in numbers(90, 93)])
    everything = read(opened(tmp_path, isolation=isolation))
    assert len(everything) == 3 * 17 + 3
    assert len({record.position for record in everything}) == len(everything)

    for index, record in enumerate(everything):
        rest = read(opened(tmp_path, record.position, isolation=isolation), n)
        assert values(rest) == values(everything[index + 1 :])


def test_a_bounded_source_ends_at_what_was_the_end(tmp_path: Path) -> None:
    destination = writing(tmp_path)
    destination.write(batch_of(numbers(0, 3)))
    intent = destination.stage()
    assert intent is not None
    destination.apply(intent)
    source = opened(tmp_path, until="end")
    destination.write(batch_of(numbers(3, 6)))
    later = destination.stage()
    assert later is not None
    destination.apply(later)

    records = read(source)
    assert values(records) == [0, 1, 2]
    with pytest.raises(EndOfSource):
        source.read(1)
    assert values(read(opened(tmp_path, records[-1].position, until="end"))) == [3, 4, 5]


def test_a_bounded_source_ends_in_front_of_an_append_that_never_ended(tmp_path: Path) -> None:
    destination = journal.Destination(path=tmp_path)
    destination.open()
    destination.write(batch_of(numbers(0, 3)))
    destination.teardown()
    with next(tmp_path.glob("*.journal")).open("ab") as file:
        file.write(b"cjfr and then it died")
    source = opened(tmp_path, until="end")

    assert values(read(source)) == [0, 1, 2]
    with pytest.raises(EndOfSource):
        source.read(1)


def test_a_source_waits_for_a_journal_that_is_not_there_yet(tmp_path: Path) -> None:
    source = opened(tmp_path / "later")
    with pytest.raises(NothingYet):
        source.read(1)

    destination = journal.Destination(path=tmp_path / "later")
    destination.open()
    destination.write(batch_of(numbers(0, 1)))

    (record,) = read(source)
    assert values(read(opened(tmp_path / "later", record.position))) == []
    with pytest.raises(FatalError, match="there is no journal"):
        opened(tmp_path / "never", until="end")


def test_a_journal_that_was_replaced_is_not_read_from_the_middle(tmp_path: Path) -> None:
    for name in ("a", "b"):
        destination = journal.Destination(path=tmp_path / name)
        destination.open()
        destination.write(batch_of(numbers(0, 2)))
        destination.teardown()
    (record, _) = read(opened(tmp_path / "a"))

    with pytest.raises(FatalError, match="was replaced"):
        opened(tmp_path / "b", record.position)
    with pytest.raises(FatalError, match="not a position of the journal source"):
        opened(tmp_path / "a", b"file:1:2:3")


def test_a_message_that_is_no_record_is_refused_with_its_bytes(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([b"\xc1 not a record", encode_body(numbers(0, 1)[0])], id=Publisher().outside_transaction(2))
    found = opened(tmp_path).read(10)

    assert not isinstance(found, list)
    assert found.records[0].payload.after == b"\xc1 not a record"
    assert "is not a record" in found.refused[0]
    assert list(found.refused) == [0]


def test_lag_is_what_was_not_looked_at(tmp_path: Path) -> None:
    destination = journal.Destination(path=tmp_path)
    destination.open()
    source = opened(tmp_path)
    destination.write(batch_of(numbers(0, 100)))
    before = source.lag().bytes
    assert before is not None
    assert before > 100

    read(source)
    assert source.lag().bytes == 0


def test_ids_of_no_one_are_read_too(tmp_path: Path) -> None:
    with FileLog(tmp_path) as log:
        log.append([encode_body(record) for record in numbers(0, 3)], id=NO_ID)

    assert values(read(opened(tmp_path), 2)) == [0, 1, 2]


EXACT = [
    2**200,
    -(2**63) - 1,
    2**64,
    Decimal("1.10"),
    datetime(2026, 11, 16, 9, 30, 1, 234567, tzinfo=timezone(timedelta(hours=2))),
    datetime(2026, 11, 16, 9, 30),  # noqa: DTZ001
    date(2026, 11, 16),
    time(9, 30, tzinfo=UTC),
    timedelta(days=-3, microseconds=5),
    UUID(int=7),
    (1, (2, Decimal(3))),
    b"\0raw",
    float("inf"),
    None,
    "",
    {"nested": [Decimal(1), {"deep": 2**70}]},
]


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_every_python_value_arrives_as_it_was(value: Any) -> None:
    record = Record(
        b"p", Operation.UPDATE, {"a": "b"}, {"key": value}, Payload(before=b"before", after={"value": value, "n": 1})
    )

    again = decode_body(encode_body(record), b"p")

    assert again == record
    assert repr(again.payload["value"]) == repr(value)


def test_a_value_that_cannot_be_carried_is_refused_by_name() -> None:
    with pytest.raises(RecordRefused, match=r"payload.after.a.b\[0\] is a builtins.object, which cannot be encoded"):
        encode_body(Record.of({"a": {"b": [object()]}}))


def test_what_stands_before_damage_is_read_before_it_is_reported(tmp_path: Path) -> None:
    destination = writing(tmp_path / "j")
    for first in (0, 5, 10):
        destination.write(batch_of(numbers(first, first + 5)))
        intent = destination.stage()
        assert intent is not None
        destination.apply(intent)
    destination.teardown()
    with FileLog(tmp_path / "j") as log:
        frames = list(log.reader())
    damaged = [frame for frame in frames if frame.count == 5][2]
    (segment,) = (tmp_path / "j").glob("*.journal")
    content = bytearray(segment.read_bytes())
    content[damaged.end - 1] ^= 0xFF
    segment.write_bytes(content)

    source = opened(tmp_path / "j")

    found = source.read(1000)
    assert isinstance(found, list)
    assert values(found) == list(range(10))
    with pytest.raises(JournalDamaged):
        source.read(1000)
    source.teardown()
