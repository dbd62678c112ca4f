"""What every box of dead letters promises, whatever it is made of."""

import sqlite3
from pathlib import Path

import pytest
import trio

from conduit_py.batch import MessageId, Piece
from conduit_py.child.store import ChildStore
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import EnvironmentUnfit, LetterBusy, LetterUnknown, StateFailed
from conduit_py.record import Operation, Payload, Record
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.store.stored_letter import (
    CauseCount,
    LetterFilter,
    LetterState,
    SettledLetter,
    StoredLetter,
    letter_id,
    remaining_letters,
)

EVERYTHING = LetterFilter()


def refused(
    number: int, node: str = "lake", error: str = "", *, pipeline: str = "p", source: str = "web", piece: Piece = ()
) -> DeadLetter:
    message = MessageId(source, number, piece)
    failure = Failure(node, error or f"row {number}: bad price")
    record = Record.of({"n": number}, position=b"%d" % number)
    return DeadLetter(pipeline, message, b"%d" % number, record, [failure], at=1000.0 + number)


def id_of(number: int, *, pipeline: str = "p", source: str = "web", piece: Piece = ()) -> str:
    return letter_id(pipeline, source, b"%d" % number, piece)


@pytest.fixture
def box(store: Store) -> DeadLetterStore:
    if isinstance(store, ChildStore):
        pytest.skip("the process of a pipeline looks through no letters: people ask the server")
    return store.letters


async def numbers(box: DeadLetterStore, filter: LetterFilter = EVERYTHING) -> list[int]:
    """The positions of the letters that match, newest first."""
    page = await box.page(filter, limit=1000)
    return [int((await box.letter(summary.id)).position) for summary in page.letters]


async def test_a_letter_comes_back_as_it_was_stored(box: DeadLetterStore) -> None:
    record = Record(b"\x00\xff", Operation.DELETE, {"k": "v"}, b"\x80", Payload({"big": 2**70}, {"raw": b"\x00"}))
    letter = DeadLetter("p", MessageId("web", 5, (1, 0)), b"\x00\xff", record, [Failure("lake", "ümlaut", 3)], at=1.5)
    await box.store([letter])
    found = await box.letter(letter_id("p", "web", b"\x00\xff", (1, 0)))

    assert found == StoredLetter.of(letter)
    assert found.record == record
    assert (found.history[0].tries, found.first_at, found.last_at) == (3, 1.5, 1.5)


async def test_the_same_message_has_one_letter_however_often_it_is_stored(box: DeadLetterStore) -> None:
    await box.store([refused(1), refused(2)])
    await box.store([refused(1, error="another reason")])

    assert await numbers(box) == [2, 1]
    assert (await box.letter(id_of(1))).error == "another reason"


async def test_pieces_sources_and_pipelines_have_letters_of_their_own(box: DeadLetterStore) -> None:
    await box.store([refused(1), refused(1, piece=(0,)), refused(1, source="shop"), refused(1, pipeline="q")])

    assert (await box.page(EVERYTHING)).total == 4


async def test_an_unknown_letter_is_an_error_with_advice(box: DeadLetterStore) -> None:
    with pytest.raises(LetterUnknown, match="no dead letter 'nobody'"):
        await box.letter("nobody")


async def test_filters_narrow_together(box: DeadLetterStore) -> None:
    await box.store([refused(n) for n in range(3)])
    await box.store([refused(3, "mart", "Disk FULL"), refused(4, source="shop"), refused(5, pipeline="q")])

    async def those(**said: object) -> list[int]:
        return sorted(await numbers(box, LetterFilter(**said)))  # type: ignore[arg-type]

    assert await those(pipeline="q") == [5]
    assert await those(node="mart") == [3]
    assert await those(text="disk full") == [3]
    assert await those(cause="row #: bad price", pipeline="p", source="web") == [0, 1, 2]
    assert await those(source="shop") == [4]
    assert await those(since=1002.0, until=1004.0) == [2, 3]
    assert await those(ids=(id_of(0), "unknown")) == [0]
    assert await those(ids=()) == []
    assert await those(state=LetterState.QUEUED) == []
    assert await those(text="%") == []


async def test_a_node_is_found_also_when_it_was_not_the_first_to_refuse(box: DeadLetterStore) -> None:
    letter = refused(1, "lake")
    letter.join(refused(1, "mart"))
    await box.store([letter])

    assert await numbers(box, LetterFilter(node="mart")) == [1]
    assert await numbers(box, LetterFilter(node="ma")) == []


async def test_pages_follow_each_other_and_count_everything(box: DeadLetterStore) -> None:
    await box.store([refused(n) for n in range(7)])
    seen: list[str] = []
    cursor: int | None = None
    totals = set()
    while True:
        page = await box.page(EVERYTHING, cursor, limit=3)
        seen += [summary.id for summary in page.letters]
        totals.add(page.total)
        if page.next is None:
            break
        cursor = page.next
        await box.store([refused(100 + len(seen))])

    assert seen == [id_of(n) for n in range(6, -1, -1)]
    assert totals == {7, 8, 9}


async def test_causes_count_what_is_alike(box: DeadLetterStore) -> None:
    await box.store([refused(n) for n in range(3)])
    await box.store([refused(9, "mart", "full")])

    assert await box.causes(EVERYTHING) == [
        CauseCount("p", "lake", "row #: bad price", 3, 1000.0, 1002.0),
        CauseCount("p", "mart", "full", 1, 1009.0, 1009.0),
    ]
    assert await box.causes(LetterFilter(node="mart")) == [CauseCount("p", "mart", "full", 1, 1009.0, 1009.0)]


async def test_to_queue_twice_is_to_queue_once(box: DeadLetterStore) -> None:
    await box.store([refused(1), refused(2)])
    first = await box.queue("p", {id_of(1): ["lake"]})
    second = await box.queue("p", {id_of(1): ["lake"], id_of(2): ["lake"], "unknown": ["lake"]})
    waiting = await box.replay_queue("p", 0, 10)

    assert first == [id_of(1)]
    assert second == [id_of(2)]
    assert [each.letter.position for each in waiting] == [b"1", b"2"]
    assert waiting[0].letter.queued_for == ["lake"]
    assert [each.letter.position for each in await box.replay_queue("p", waiting[0].turn, 10)] == [b"2"]
    assert await box.replay_queue("q", 0, 10) == []


async def test_a_letter_is_not_queued_for_a_node_that_did_not_refuse_it(box: DeadLetterStore) -> None:
    await box.store([refused(1)])

    assert await box.queue("p", {id_of(1): ["mart"]}) == []
    assert (await box.letter(id_of(1))).state is LetterState.KEPT


async def test_a_delivered_letter_is_gone_and_a_refused_one_is_back_in_its_place(box: DeadLetterStore) -> None:
    await box.store([refused(1), refused(2), refused(3)])
    await box.queue("p", {id_of(1): ["lake"], id_of(2): ["lake"]})
    one, two = await box.replay_queue("p", 0, 10)
    back = StoredLetter.of(refused(2, error="still no"))
    await box.settle([SettledLetter.of(one, []), SettledLetter.of(two, [back])])

    assert await numbers(box) == [3, 2]
    assert await box.replay_queue("p", 0, 10) == []
    assert (await box.letter(id_of(2))).error == "still no"
    await box.queue("p", {id_of(2): ["lake"]})
    (again,) = await box.replay_queue("p", two.turn, 10)
    assert again.turn > two.turn


async def test_an_old_outcome_changes_nothing_about_a_later_sending(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.queue("p", {id_of(1): ["lake"]})
    (first,) = await box.replay_queue("p", 0, 10)
    outcome = SettledLetter.of(first, remaining_letters(first.letter, [refused(1, error="still no")]))
    await box.settle([outcome])
    await box.queue("p", {id_of(1): ["lake"]})
    (again,) = await box.replay_queue("p", 0, 10)
    # Turns may begin again when the file is opened with nothing queued.
    await box.settle([outcome, outcome._replace(turn=again.turn)])

    assert await box.replay_queue("p", 0, 10) == [again]
    assert again.letter.attempts == 2


async def test_pieces_take_the_place_of_the_letter_they_were(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.queue("p", {id_of(1): ["lake"]})
    (one,) = await box.replay_queue("p", 0, 10)
    await box.settle([SettledLetter.of(one, [StoredLetter.of(refused(1, piece=(1,)))])])

    assert [summary.id for summary in (await box.page(EVERYTHING)).letters] == [id_of(1, piece=(1,))]


async def test_a_letter_that_was_discarded_on_its_way_does_not_come_back(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.queue("p", {id_of(1): ["lake"]})
    (one,) = await box.replay_queue("p", 0, 10)
    discarded = await box.discard(LetterFilter(ids=(id_of(1),)))
    await box.settle([SettledLetter.of(one, [one.letter])])

    assert discarded == 1
    assert await numbers(box) == []


async def test_a_message_refused_again_while_its_letter_is_queued_stays_queued(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.queue("p", {id_of(1): ["lake"]})
    (before,) = await box.replay_queue("p", 0, 10)
    await box.store([refused(1)])
    (after,) = await box.replay_queue("p", 0, 10)
    await box.settle([SettledLetter.of(before, [])])

    assert after.turn == before.turn
    assert await numbers(box) == []


async def test_an_edited_letter_has_the_new_record_and_the_original(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.edit(id_of(1), {"lake": Record.of({"n": 10})})
    letter = await box.letter(id_of(1))

    assert letter.record.payload["n"] == 10
    assert letter.originals["lake"].payload["n"] == 1
    assert [summary.edited for summary in (await box.page(EVERYTHING)).letters] == [True]


async def test_what_is_on_its_way_cannot_be_edited(box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await box.queue("p", {id_of(1): ["lake"]})

    with pytest.raises(LetterBusy):
        await box.edit(id_of(1), {"lake": Record.of({"n": 10})})
    assert (await box.letter(id_of(1))).record.payload["n"] == 1


async def test_discarding_takes_what_matches_and_nothing_else(box: DeadLetterStore) -> None:
    await box.store([refused(n, pipeline=pipeline) for pipeline in ("p", "q") for n in range(3)])

    assert await box.discard(LetterFilter(pipeline="p", until=1002.0)) == 2
    assert (await box.page(LetterFilter(pipeline="p"))).total == 1
    assert (await box.page(LetterFilter(pipeline="q"))).total == 3


async def test_retention_by_age_and_by_number_spares_what_is_queued_and_other_pipelines(box: DeadLetterStore) -> None:
    await box.store([refused(n) for n in range(6)])
    await box.store([refused(0, pipeline="q")])
    await box.queue("p", {id_of(0): ["lake"]})

    assert await box.retain("p", 1002.0, None) == 1
    assert await numbers(box, LetterFilter(pipeline="p")) == [5, 4, 3, 2, 0]
    assert await box.retain("p", None, 2) == 2
    assert await numbers(box, LetterFilter(pipeline="p")) == [5, 4, 0]
    assert await box.retain("p", None, None) == 0
    assert await numbers(box, LetterFilter(pipeline="q")) == [0]


async def test_letters_and_their_bytes_are_counted_by_state(box: DeadLetterStore) -> None:
    await box.store([refused(1), refused(2), refused(1, pipeline="q")])
    await box.queue("p", {id_of(1): ["lake"]})
    counts = {(each.pipeline, each.state): each for each in await box.count()}

    assert {key: each.letters for key, each in counts.items()} == {
        ("p", LetterState.KEPT): 1,
        ("p", LetterState.QUEUED): 1,
        ("q", LetterState.KEPT): 1,
    }
    assert all(each.bytes > 20 for each in counts.values())
    assert list(counts.values()) == box.counts


async def test_who_watches_a_pipeline_is_notified_of_its_letters_only(box: DeadLetterStore) -> None:
    notified: list[str] = []
    await box.store([refused(1), refused(2), refused(1, pipeline="q")])
    with box.watch("p", lambda: notified.append("p")):
        await box.queue("q", {id_of(1, pipeline="q"): ["lake"]})
        await box.queue("p", {"unknown": ["lake"]})
        await box.queue("p", {id_of(1): ["lake"]})
    await box.queue("p", {id_of(2): ["lake"]})

    assert notified == ["p"]


async def test_what_cannot_be_kept_is_refused_and_nothing_of_it_is_stored(box: DeadLetterStore) -> None:
    bad = refused(2)
    bad.record.payload["what"] = object()

    with pytest.raises(Exception, match=r"payload\.after\.what"):
        await box.store([refused(1), bad])
    assert await numbers(box) == []


async def test_errors_that_are_no_proper_text_are_kept_readable(box: DeadLetterStore) -> None:
    await box.store([refused(1, error="half \ud800 and \x00" + "x" * 100_000)])

    assert (await box.letter(id_of(1))).error.startswith("half \\ud800 and \x00xx")
    assert len((await box.letter(id_of(1))).error) < 10_000


async def test_a_closed_store_has_no_letters_to_give(store: Store, box: DeadLetterStore) -> None:
    await box.store([refused(1)])
    await store.close()

    with pytest.raises(StateFailed, match="closed"):
        await box.page(EVERYTHING)


class TestFile:
    """What holds for letters on disk only."""

    async def test_they_are_there_after_the_process_is_gone(self, tmp_path: Path) -> None:
        async with await SqliteStore.open(tmp_path) as store:
            await store.letters.store([refused(1), refused(2)])
            await store.letters.queue("p", {id_of(2): ["lake"]})
        async with await SqliteStore.open(tmp_path) as store:
            waiting = await store.letters.replay_queue("p", 0, 10)

            assert await numbers(store.letters) == [2, 1]
            assert [each.letter.position for each in waiting] == [b"2"]

    async def test_no_file_comes_to_be_for_those_who_keep_no_letters(self, tmp_path: Path) -> None:
        async with await SqliteStore.open(tmp_path) as store:
            assert (await store.letters.page(EVERYTHING)).total == 0
            assert await store.letters.count() == []

        assert not (tmp_path / "letters.db").exists()

    async def test_a_foreign_file_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "letters.db"
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE mine (x)")
        before = file.read_bytes()
        async with await SqliteStore.open(tmp_path) as store:
            with pytest.raises(EnvironmentUnfit, match="not written by conduit-py"):
                await store.letters.store([refused(1)])

        assert file.read_bytes() == before

    async def test_a_damaged_file_says_what_would_be_lost(self, tmp_path: Path) -> None:
        (tmp_path / "letters.db").write_bytes(b"not a database, by far" * 100)
        async with await SqliteStore.open(tmp_path) as store:
            with pytest.raises(EnvironmentUnfit, match="damaged") as caught:
                await store.letters.store([refused(1)])

        assert "dead letters are lost" in (caught.value.suggestion or "")

    async def test_many_tasks_may_use_it_at_once(self, tmp_path: Path) -> None:
        async with await SqliteStore.open(tmp_path) as store:
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(store.letters.store, [refused(number)])

            assert sorted(await numbers(store.letters)) == list(range(20))


async def test_a_memory_box_fails_with_its_store() -> None:
    store = MemoryStore(fail_after=1)
    await store.letters.store([refused(1)])

    with pytest.raises(StateFailed):
        await store.letters.store([refused(2)])
    assert await numbers(store.letters) == [1]
