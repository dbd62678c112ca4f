"""What holds for every log: appends, offsets, registers (GZ-R1 to GZ-R6), reading forward and backward, pruning."""

from itertools import pairwise

import pytest

from conduit_py.errors import Fenced
from conduit_py.journal.errors import JournalGap, RegisterMismatch, WrongOffset
from conduit_py.journal.log import HEAD, Append, Commit, Log
from conduit_py.journal.message_id import NO_ID, Flag, MessageUuid, ProducerId
from conduit_py.journal.registers import Registers, Selector, apply_changes, holds

PRODUCER = ProducerId(b"\x01\x02\x03\x04\x05\x06")


def bodies(log: Log, offset: int = 0) -> list[list[bytes]]:
    return [frame.bodies for frame in log.reader(offset)]


def test_frames_come_back_whole_and_in_order(log: Log) -> None:
    written = [[b"one"], [b"", b"two", b"x" * 1000], [b""], [b"three"] * 50]
    commits = [log.append(each) for each in written]

    frames = list(log.reader())
    assert [frame.bodies for frame in frames] == written
    assert [(frame.begin, frame.end) for frame in frames] == [commit[:2] for commit in commits]
    assert all(before.end <= after.begin for before, after in pairwise(commits))
    assert {frame.id for frame in frames} == {NO_ID}


def test_a_frame_has_the_id_of_its_first_message(log: Log) -> None:
    id = MessageUuid(PRODUCER, 1600, Flag.CONTINUE)
    log.append([b"one", b"two"], id=id)

    (frame,) = log.reader()
    assert frame.id == id
    assert frame.last_clock == 1760


def test_reading_goes_on_from_the_end_of_any_frame_and_from_the_head(log: Log) -> None:
    commits = [log.append([b"%d" % number]) for number in range(10)]
    tail = log.reader(HEAD)
    assert tail.read() is None

    log.append([b"new"])

    for number, commit in enumerate(commits):
        expected = [[b"%d" % later] for later in range(number + 1, 10)]
        assert bodies(log, commit.end) == [*expected, [b"new"]]
        assert bodies(log, commit.begin) == [[b"%d" % number], *expected, [b"new"]]
    frame = tail.read()
    assert frame is not None
    assert frame.bodies == [b"new"]
    assert tail.read() is None


def test_a_reader_sees_what_is_appended_while_it_reads(log: Log) -> None:
    reader = log.reader()
    assert reader.read() is None
    for number in range(20):
        log.append([b"%d" % number])
        frame = reader.read()
        assert frame is not None
        assert frame.bodies == [b"%d" % number]
        assert reader.read() is None


def test_the_newest_frames_can_be_read_backward(log: Log) -> None:
    for number in range(10):
        log.append([b"%d" % number])

    assert [frame.bodies for frame in log.backward()] == [[b"%d" % number] for number in reversed(range(10))]


def test_a_barrier_tells_the_head_and_writes_nothing(log: Log) -> None:
    appended = log.append([b"one"], union={"author": "me"})

    assert log.barrier() == Commit(appended.end, appended.end, {"author": ("me",)})
    assert bodies(log) == [[b"one"]]


def test_gz_r1_registers_change_with_the_append_if_the_check_passes(log: Log) -> None:
    def append(check: Selector | None, union: dict[str, str], subtract: dict[str, str]) -> Registers:
        return log.append([b"xy"], check=check, union=union, subtract=subtract).registers

    assert append(None, {"AA": "11", "BB": "22"}, {}) == {"AA": ("11",), "BB": ("22",)}
    first = Selector(include={"AA": "11", "BB": ""})
    assert append(first, {"CC": "33"}, {"AA": "11", "BB": "XYZ"}) == {"BB": ("22",), "CC": ("33",)}
    second = Selector(include={"CC": ()}, exclude={"AA": ()})
    assert append(second, {"AA": "44"}, {"CC": "33"}) == {"AA": ("44",), "BB": ("22",)}
    with pytest.raises(RegisterMismatch) as caught:
        append(Selector(include={"AA": "55"}), {"ZZZ": "1"}, {})

    assert isinstance(caught.value, Fenced)
    assert caught.value.registers == {"AA": ("44",), "BB": ("22",)}
    assert "requires that AA is '55'" in caught.value.message
    assert log.barrier().registers == {"AA": ("44",), "BB": ("22",)}
    assert len(bodies(log)) == 3


def test_gz_r2_a_check_passes_while_there_are_no_registers(log: Log) -> None:
    assert log.append([b"xy"], check=Selector(include={"AA": "11"}, exclude={"BB": ()})).registers == {}


def test_gz_r3_registers_cannot_be_changed_without_an_append(log: Log) -> None:
    with pytest.raises(ValueError, match="at least one body"):
        log.append([], union={"AA": "11"})
    assert log.barrier().registers == {}


def test_gz_r4_an_append_that_is_refused_leaves_nothing_and_its_neighbours_alone(log: Log) -> None:
    check = Selector(include={"author": "me"})
    log.append([b"first"], union={"author": "other"})

    answers = log.append_all([Append([b"before"]), Append([b"refused"], check=check), Append([b"after"])])

    assert [type(answer) for answer in answers] == [Commit, RegisterMismatch, Commit]
    assert bodies(log) == [[b"first"], [b"before"], [b"after"]]


def test_gz_r5_union_replaces_and_subtract_removes_only_exact_values() -> None:
    before: Registers = {
        "aaa": ("1", "2"),
        "bbb": ("1",),
        "ccc": ("1", "2"),
        "ddd": ("",),
        "eee": ("9",),
        "ggg": ("1",),
    }

    after = apply_changes(
        before, {"bbb": ["5", "4", "4"]}, {"aaa": ["2", "1"], "ccc": "1", "ddd": "", "ggg": "1", "none": "1"}
    )

    assert after == {"bbb": ("4", "5"), "ccc": ("1", "2"), "eee": ("9",)}


def test_a_check_looks_for_any_of_the_values() -> None:
    registers: Registers = {"AA": ("1", "2")}

    assert holds(registers, Selector(include={"AA": ["2", "3"]}))
    assert not holds(registers, Selector(include={"AA": ["3", "4"]}))
    assert not holds(registers, Selector(exclude={"AA": ["2", "3"]}))
    assert holds(registers, Selector(exclude={"AA": "3", "BB": ()}))
    assert not holds(registers, Selector(include={"BB": ()}))


def test_gz_r6_an_append_at_another_offset_than_the_head_is_refused(log: Log) -> None:
    head = log.barrier().end
    first = log.append([b"one"], at=head)
    second = log.append([b"x" * 300], at=first.end)
    # The segment is full now: the next append goes to another one, and is still the next.
    third = log.append([b"three"], at=second.end)

    with pytest.raises(WrongOffset, match=f"head at offset {second.end}, but it is at {third.end}"):
        log.append([b"four"], at=second.end)
    assert [len(each[0]) for each in bodies(log)] == [3, 300, 5]


def test_a_fence_stops_those_who_check_for_what_was_before(log: Log) -> None:
    mine, yours = (Selector(include={"author": name}) for name in ("me", "you"))
    log.append([b"claim"], union={"author": "me"})
    log.append([b"one"], check=mine)
    log.append([b"claim"], union={"author": "you"})

    with pytest.raises(RegisterMismatch):
        log.append([b"two"], check=mine)
    log.append([b"three"], check=yours)
    assert bodies(log)[1:] == [[b"one"], [b"claim"], [b"three"]]


def test_registers_outlive_the_segment_in_which_they_were_set(log: Log) -> None:
    log.append([b"claim"], union={"author": "me"})
    for _ in range(20):
        last = log.append([b"x" * 100])
    log.prune(last.end)

    assert log.barrier().registers == {"author": ("me",)}


def test_what_was_pruned_is_reported_once_and_reading_goes_on(log: Log) -> None:
    commits = [log.append([b"%d" % number, b"x" * 100]) for number in range(20)]
    oldest = log.prune(commits[10].begin)
    assert oldest <= commits[10].begin

    if oldest > commits[2].end:
        reader = log.reader(commits[1].begin)
        with pytest.raises(JournalGap, match="were pruned") as caught:
            reader.read()
        assert (caught.value.begin, caught.value.end) == (commits[1].begin, oldest)
        assert [int(frame.bodies[0]) for frame in reader][-1] == 19
    assert [int(each[0]) for each in bodies(log)][-9:] == list(range(11, 20))
