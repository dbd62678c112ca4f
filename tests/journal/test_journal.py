"""The journal for trio: order, group commit, tailing, cancellation, on either log."""

from contextlib import aclosing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from conduit_py.journal.errors import JournalDamaged, JournalFailed, RegisterMismatch
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.journal import Journal
from conduit_py.journal.log import HEAD
from conduit_py.journal.registers import Selector
from conduit_py.journal.transactions import Publisher
from tests.journal.faulty_disk import EIO, FaultyDisk


async def bodies(journal: Journal, offset: int = 0, end: int | None = None) -> list[bytes]:
    return [body async for frame in journal.read(offset, end=end) for body in frame.bodies]


async def test_appends_come_back_in_order(journal: Journal) -> None:
    commits = [await journal.append([b"%d" % number]) for number in range(100)]

    assert await bodies(journal) == [b"%d" % number for number in range(100)]
    assert await bodies(journal, commits[49].end) == [b"%d" % number for number in range(50, 100)]
    assert await bodies(journal, commits[10].begin, commits[12].begin) == [b"10", b"11"]
    assert [frame.bodies for frame in await journal.last(2)] == [[b"99"], [b"98"]]
    assert (await journal.barrier()).end == commits[-1].end


async def test_invariant_i2_ids_grow_in_the_order_of_the_journal_whoever_appends(journal: Journal) -> None:
    publisher = Publisher()

    async def publish() -> None:
        for _ in range(20):
            await journal.append([b"x", b"y"], stamp=publisher.outside_transaction)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(publish)

    clocks = [frame.id.clock async for frame in journal.read()]
    assert len(clocks) == 200
    assert clocks == sorted(set(clocks))


@pytest.mark.parametrize("hit", [0, 1, 70, 98])
async def test_what_stands_before_damage_is_given_then_the_damage_is_reported(tmp_path: Path, hit: int) -> None:
    """A reader of many frames at a time must not miss the good ones: 63 of them may stand before it."""
    async with await Journal.open(tmp_path) as journal:
        commits = [await journal.append([b"number %03d" % number]) for number in range(100)]
        damage(tmp_path, b"number %03d" % hit)
        found: list[bytes] = []

        async def read() -> None:
            async for frame in journal.read():
                found.extend(frame.bodies)

        with pytest.raises(JournalDamaged) as damaged:
            await read()

        assert found == [b"number %03d" % number for number in range(hit)]
        assert (damaged.value.begin, damaged.value.end) == (commits[hit].begin, commits[hit].end)
        assert await bodies(journal, 0, commits[hit].begin) == found
        assert len(await bodies(journal, damaged.value.end)) == 99 - hit


async def test_damage_within_the_end_is_reported_however_far_behind_it_reading_goes_on(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path) as journal:
        commits = [await journal.append([b"number %03d" % number]) for number in range(10)]
        damage(tmp_path, b"number 007")
        for end in (commits[7].begin + 1, commits[7].end):
            with pytest.raises(JournalDamaged):
                await bodies(journal, 0, end)


def damage(directory: Path, body: bytes) -> None:
    """Change a bit of a body in the file that has it."""
    (path,) = directory.glob("*.journal")
    data = bytearray(path.read_bytes())
    data[data.index(body)] ^= 1
    path.write_bytes(data)


async def test_appends_that_wait_together_share_a_write(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Journal(FileLog(tmp_path, disk=disk)) as journal:
        before = disk.syncs
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(journal.append, [b"%d" % number])

        assert disk.syncs - before == journal.groups < 200


async def test_one_refused_append_does_not_touch_those_that_share_its_write(journal: Journal) -> None:
    await journal.append([b"claim"], union={"author": "you"})
    answers: list[str] = []

    async def append(number: int) -> None:
        check = Selector(include={"author": "me"}) if number % 2 else None
        try:
            await journal.append([b"%d" % number], check=check)
        except RegisterMismatch:
            answers.append("refused")
        else:
            answers.append("done")

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(append, number)

    assert sorted(answers) == ["done"] * 10 + ["refused"] * 10
    assert sorted(await bodies(journal)) == sorted([b"claim", *(b"%d" % number for number in range(0, 20, 2))])


async def test_a_tailer_waits_for_what_is_appended(journal: Journal) -> None:
    seen: list[bytes] = []

    async def tail() -> None:
        async with aclosing(journal.read(HEAD, block=True)) as frames:
            tailing.set()
            async for frame in frames:
                seen.extend(frame.bodies)
                if b"last" in frame.bodies:
                    return

    tailing = trio.Event()
    await journal.append([b"before"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tail)
        await tailing.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        for number in range(10):
            await journal.append([b"%d" % number])
        await journal.append([b"last"])

    assert seen == [*(b"%d" % number for number in range(10)), b"last"]


async def test_a_tailer_sees_what_another_process_would_append(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path) as journal:
        with FileLog(tmp_path) as other, trio.fail_after(300):
            other.append([b"one"])
            async with aclosing(journal.read(block=True)) as frames:
                assert (await anext(frames)).bodies == [b"one"]
                other.append([b"two"])
                assert (await anext(frames)).bodies == [b"two"]


async def test_a_cancelled_append_is_carried_out_in_its_place(tmp_path: Path) -> None:
    async with await Journal.open(tmp_path) as journal:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.append, [b"one"])
            nursery.start_soon(journal.append, [b"two"])
            await trio.lowlevel.cancel_shielded_checkpoint()
            await trio.lowlevel.cancel_shielded_checkpoint()
            nursery.cancel_scope.cancel()
        await journal.append([b"three"])

        found = await bodies(journal)
    assert found[-1] == b"three"
    assert sorted(found[:-1]) == [b"one", b"two"]


async def test_a_failed_sync_is_raised_for_everybody_who_waits_and_who_comes_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Journal(FileLog(tmp_path, disk=disk)) as journal:
        await journal.append([b"before"])
        disk.fail_sync = EIO
        failed = 0

        async def append() -> None:
            nonlocal failed
            with pytest.raises(JournalFailed):
                await journal.append([b"x"])
            failed += 1

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(append)

        assert failed == 10
        assert await bodies(journal) == [b"before"]


async def test_a_closed_journal_takes_nothing_more(journal: Journal) -> None:
    await journal.append([b"one"])
    await journal.close()
    await journal.close()

    with pytest.raises(JournalFailed, match="is closed"):
        await journal.append([b"two"])


async def test_a_journal_in_memory_lives_on_virtual_time(autojump_clock: MockClock) -> None:
    async with Journal.in_memory() as journal:
        with trio.move_on_after(1000):
            async for _ in journal.read(block=True):
                raise AssertionError("nothing was appended")

        assert trio.current_time() == 1000
