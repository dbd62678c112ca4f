"""Discovery of objects: one that is stored or replaced while a round reads is not missed, and empty ones go too."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conduit_connectors.objects.contents import ContentOptions
from conduit_connectors.objects.discovery import RECENT_MAX, Discovery, OnReplaced
from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.reading import ObjectReading, ReadingOptions
from conduit_connectors.objects.removal import WAITING_MAX
from conduit_connectors.objects.store import LocalBytes, LocalStore, ObjectInfo

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Record, TransientError

PATTERN = ObjectPattern(["/in/*"])
SECOND = 1_700_000_000 * 1_000_000


class CoarseStore(LocalStore):
    """A store that tells times in whole seconds, as S3 does."""

    def __init__(self, names: list[str]) -> None:
        self.times = dict.fromkeys(names, SECOND)

    def list(self, folder: str, after: str | None) -> Iterator[ObjectInfo]:
        return iter([self.find(name) for name in sorted(self.times) if after is None or name > after])

    def is_before(self, name: str, other: str) -> bool:
        return name < other

    def find(self, name: str) -> ObjectInfo:
        return ObjectInfo(name, 1, self.times[name], "mark")


def find_all(discovery: Discovery) -> list[str]:
    names: list[str] = []
    while True:
        try:
            found = discovery.next()
        except EndOfSource:
            return names
        except NothingYet:
            time.sleep(0.02)
            continue
        discovery.finish(found)
        names.append(found.info.name)


def resumed(store: CoarseStore, mode: OnReplaced, last: Discovery) -> Discovery:
    """What the next run does, after the last object of an earlier one."""
    discovery = Discovery(store, PATTERN, mode)
    discovery._round, discovery._last, discovery._last_mark = last._round, last._last, last._last_mark
    discovery._listed_any = True
    return discovery


def many(prefix: str) -> list[str]:
    return [f"/in/{prefix}{number:04d}" for number in range(2 * RECENT_MAX)]


def test_objects_stored_in_the_second_of_the_listing_are_not_missed() -> None:
    store = CoarseStore(many("m"))
    discovery = Discovery(store, PATTERN, "reread")
    with pytest.raises(NothingYet):
        discovery.next()
    # The clock of the store has not moved on: these have the time of the others.
    store.times |= dict.fromkeys(many("a") + many("z"), SECOND)
    first = find_all(discovery)
    store.times["/in/later"] = SECOND + 1_000_000

    assert first == sorted(many("a") + many("m") + many("z"))
    assert find_all(resumed(store, "reread", discovery)) == ["/in/later"]


def test_few_objects_are_remembered_and_need_no_wait() -> None:
    store = CoarseStore(many("m")[:20])
    discovery = Discovery(store, PATTERN, "reread")
    first = discovery.next()
    store.times |= dict.fromkeys(many("a")[:20], SECOND)
    discovery.finish(first)

    assert [first.info.name, *find_all(discovery)] == many("m")[:20]
    assert find_all(resumed(store, "reread", discovery)) == many("a")[:20]


def test_refuse_sees_an_object_that_is_stored_late_in_the_same_second() -> None:
    store = CoarseStore(["/in/m"])
    discovery = Discovery(store, PATTERN, "refuse")
    with pytest.raises(NothingYet):
        discovery.next()
    store.times["/in/a"] = SECOND

    assert find_all(discovery) == ["/in/a", "/in/m"]
    store.times["/in/b"] = SECOND + 1_000_000
    with pytest.raises(FatalError, match="added or replaced"):
        find_all(resumed(store, "refuse", discovery))


class ReplacingStore(LocalStore):
    """Replaces objects after they were listed, each time that they are opened, by the next of their contents."""

    def __init__(self, contents: dict[str, list[str]]) -> None:
        self._contents = contents

    def open(self, info: ObjectInfo) -> LocalBytes:
        path = Path(info.name)
        if texts := self._contents.get(path.name):
            path.write_text(f"{texts.pop(0)}\n")
        return super().open(info)


def reading_of(folder: Path, mode: OnReplaced, position: bytes | None = None, **replaced: list[str]) -> ObjectReading:
    options = ReadingOptions(ContentOptions("lines"), mode)
    reading = ObjectReading(ReplacingStore(replaced), ObjectPattern([str(folder)]), options)
    reading.start(position)
    return reading


def read_on(reading: ObjectReading) -> tuple[list[Any], list[bytes]]:
    """Return the contents of all records that are left, and their positions."""
    found: list[Record] = []
    while True:
        try:
            found += reading.read(10)  # type: ignore[arg-type]
        except EndOfSource:
            return [record.payload.after for record in found], [record.position for record in found]
        except NothingYet:
            time.sleep(0.02)


def store_letters(folder: Path) -> None:
    for name in "abc":
        (folder / name).write_text(f"{name}\n")


def test_new_only_reads_what_replaced_an_object_before_it_was_opened(tmp_path: Path) -> None:
    store_letters(tmp_path)
    found, positions = read_on(reading_of(tmp_path, "new-only", b=["another b"]))

    assert found == [b"a", b"another b", b"c"]
    assert read_on(reading_of(tmp_path, "new-only", positions[0]))[0] == [b"another b", b"c"]
    assert read_on(reading_of(tmp_path, "new-only", positions[1]))[0] == [b"c"]


def test_new_only_does_not_pass_over_an_object_that_is_replaced_all_the_time(tmp_path: Path) -> None:
    store_letters(tmp_path)
    reading = reading_of(tmp_path, "new-only", b=["another b", "the third b"])
    (first,) = reading.read(10)  # type: ignore[misc]
    with pytest.raises(TransientError, match="b is replaced again and again"):
        reading.read(10)

    assert read_on(reading_of(tmp_path, "new-only", first.position))[0] == [b"the third b", b"c"]


def test_by_time_the_next_round_reads_what_replaced_an_object_before_it_was_opened(tmp_path: Path) -> None:
    store_letters(tmp_path)
    found, positions = read_on(reading_of(tmp_path, "reread", b=["another b"]))

    assert found == [b"a", b"c"]
    assert read_on(reading_of(tmp_path, "reread", positions[-1]))[0] == [b"another b"]


def test_refuse_reads_or_tells_of_what_replaced_an_object_before_it_was_opened(tmp_path: Path) -> None:
    store_letters(tmp_path)
    found, positions = read_on(reading_of(tmp_path, "refuse", c=["another c"]))
    later, _ = read_on(reading_of(tmp_path, "refuse", positions[-1]))
    between, last = read_on(reading_of(tmp_path, "refuse", a=["another a"]))

    assert found + later == [b"a", b"b", b"another c"]
    assert between == [b"b", b"another c"]
    with pytest.raises(FatalError, match=r"/a was added or replaced, but it is not after .*/c"):
        read_on(reading_of(tmp_path, "refuse", last[-1]))


@pytest.mark.parametrize("after", ["delete", "move"])
def test_empty_objects_are_removed_although_more_of_them_follow_than_may_wait(tmp_path: Path, after: Any) -> None:
    folder, count = tmp_path / "in", 2 * WAITING_MAX + 3
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:04d}").touch()
    (folder / "last").write_text("1\n")
    move_to = str(tmp_path / "done") if after == "move" else None
    options = ReadingOptions(ContentOptions("lines"), after=after, move_to=move_to)
    reading = ObjectReading(LocalStore(), ObjectPattern([str(folder)]), options)
    removed = []
    for _ in range(2):
        found = reading.read(10)
        assert isinstance(found, Reading)
        assert found.position is not None
        assert list(found.records) == []
        # Nothing more before there is room again.
        with pytest.raises(NothingYet):
            reading.read(10)
        reading.handle_ack([found.position])
        removed.append(count + 1 - len(list(folder.iterdir())))
    contents, positions = read_on(reading)
    reading.handle_ack(positions)

    assert removed == [WAITING_MAX, 2 * WAITING_MAX]
    assert contents == [b"1"]
    assert list(folder.iterdir()) == []
