"""ReadAhead: reads a source while jobs run; it needs no Spark."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from conduit_py.errors import ContractBroken, FatalError
from conduit_py.record import CollectionSchema, Record
from conduit_py.sdk import Options, SourceConnector
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading
from conduit_py.spark.engine.read_ahead import ReadAhead
from conduit_py.stream.plugin_calls import PluginCaller


class Scripted(SourceConnector[Options]):
    """Returns the results of these functions, one after another, then ends."""

    script: list[Callable[[int], Any]]

    async def read(self, n: int) -> Any:
        await trio.lowlevel.checkpoint()
        if not self.script:
            raise EndOfSource
        return self.script.pop(0)(n)


def start(*script: Callable[[int], Any], records_only: bool = False) -> ReadAhead:
    source = Scripted()
    source.script = list(script)
    ahead = ReadAhead(PluginCaller("web", source), 4, records_only=records_only)
    ahead.start()
    return ahead


def records(*numbers: int) -> list[Record]:
    return [Record.of({"n": number}, position=b"%d" % number) for number in numbers]


def nothing(n: int) -> Any:
    raise NothingYet


async def test_records_come_in_order_with_why_the_source_refused_them(autojump_clock: trio.testing.MockClock) -> None:
    ahead = start(lambda n: records(1, 2), nothing, lambda n: Reading(records(3), {0: "torn"}))

    taken = [each for n in (1, 9, 9) for each in (await ahead.take(n)).records]
    with pytest.raises(EndOfSource):
        await ahead.take(1)
    await ahead.close()

    assert [(each.record.payload["n"], each.refused) for each in taken] == [(1, None), (2, None), (3, "torn")]


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda n: [], "read() returned nothing"),
        (lambda n: ["text"], "must return a list of Record"),
        (lambda n: records(*range(n + 1)), "read(4) returned 5 records"),
        (lambda n: Reading(records(1), {7: "torn"}), "read() refused record 7 of 1"),
    ],
)
async def test_a_source_that_breaks_its_contract_is_named(answer: Callable[[int], Any], rule: str) -> None:
    ahead = start(answer)

    with pytest.raises(ContractBroken) as raised:
        await ahead.take(1)
    await ahead.close()

    assert raised.value.node == "web"
    assert rule in raised.value.message


async def test_no_more_is_read_than_there_is_room_for(autojump_clock: trio.testing.MockClock) -> None:
    asked: list[int] = []

    def read(n: int) -> list[Record]:
        asked.append(n)
        return records(len(asked))

    ahead = start(*[read] * 9)
    await trio.testing.wait_all_tasks_blocked()
    full = list(asked)
    await ahead.take(3)
    await trio.testing.wait_all_tasks_blocked()
    await ahead.close()

    assert full == [4, 3, 2, 1]
    assert asked == [4, 3, 2, 1, 3, 2, 1]


async def test_progress_comes_after_the_records_before_it_and_schemas_before_those_after_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = (CollectionSchema("orders", version, ()) for version in "12")
    ahead = start(
        lambda n: Reading(records(1, 2), schemas=[first]),
        lambda n: Reading([], position=b"2+"),
        lambda n: Reading(records(3), schemas=[second], position=b"3+"),
        nothing,
        nothing,
        lambda n: Reading([], position=b"4"),
        lambda n: Reading([], position=b"5"),
    )
    await trio.testing.wait_all_tasks_blocked()
    taken = [await ahead.take(1), await ahead.take(9), await ahead.take(9)]
    await trio.sleep(60)
    taken.append(await ahead.take(9))
    with pytest.raises(EndOfSource):
        await ahead.take(1)
    await ahead.close()

    assert [[each.record.payload["n"] for each in part.records] for part in taken] == [[1], [2], [3], []]
    assert [[*part.schemas] for part in taken] == [[first], [], [second], []]
    assert [part.position for part in taken] == [None, b"2+", b"3+", b"5"]


@pytest.mark.parametrize(
    ("reading", "what"),
    [
        (Reading([], position=b"9"), "progress without a record"),
        (Reading(records(1), schemas=[CollectionSchema("orders", "1", ())]), "a schema"),
    ],
)
async def test_what_a_data_source_cannot_pass_on_is_refused_and_not_dropped(reading: Reading, what: str) -> None:
    ahead = start(lambda n: reading, records_only=True)

    with pytest.raises(FatalError, match=f"web read {what}, which a part of a source"):
        await ahead.take(1)
    await ahead.close()
