"""Discovery of objects: an object that is stored while a round reads, with the same time as others, is not missed."""

import time
from collections.abc import Iterator

import pytest
from conduit_connectors.objects.discovery import RECENT_MAX, Discovery, OnReplaced
from conduit_connectors.objects.pattern import ObjectPattern
from conduit_connectors.objects.store import LocalStore, ObjectInfo

from conduit_py.sdk import EndOfSource, FatalError, NothingYet

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
