"""The acceptance suite as its users run it: one line per connector, here on our own scripted ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conduit_py.record import Record
from conduit_py.sdk import AckMode
from conduit_py.testing.acceptance import destination_acceptance, source_acceptance
from conduit_py.testing.script import Refuse
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource, StoppableSource

pytest_plugins = ["pytester"]


def bounded() -> ScriptedSource:
    return ScriptedSource(records=12, chunks=[3, 1])


def waiting() -> Iterator[ScriptedSource]:
    yield ScriptedSource(records=4, bounded=False)


def stoppable() -> ScriptedSource:
    return StoppableSource(records=4, bounded=False)


TestBounded = source_acceptance(bounded)
TestWaiting = source_acceptance(waiting, records=4)
TestStoppable = source_acceptance(stoppable, records=4)


def keeping(mode: AckMode) -> Callable[[], tuple[ScriptedDestination, Callable[[], list[Any]]]]:
    def make() -> tuple[ScriptedDestination, Callable[[], list[Any]]]:
        destination = ScriptedDestination(acks=mode, script={99: Refuse("the last one")})
        stored = destination.log.stored["destination"]
        return destination, lambda: [delivery.record.payload.after for delivery in stored]

    return make


REFUSED = Record.of({"n": 99})
TestAtWrite = destination_acceptance(keeping(AckMode.WRITE), refused=REFUSED)
TestAtFlush = destination_acceptance(keeping(AckMode.FLUSH), refused=REFUSED)
TestLater = destination_acceptance(keeping(AckMode.LATER), refused=REFUSED)


def test_the_one_line_gives_one_test_per_rule_with_fixtures_and_clean_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from conduit_py.testing import Fail, OnAck, ScriptedSource, source_acceptance

        def orders(tmp_path):
            (tmp_path / "made").touch()
            yield ScriptedSource(records=4, script={2: OnAck(Fail("no acks here", times=None))})
            print("cleaned up")

        TestOrders = source_acceptance(orders)
    """)

    result = pytester.runpytest_subprocess("-p", "no:trio", "-v", "-s")

    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["skipped"]) == (1, 5)
    assert result.stdout.str().count("cleaned up") == sum(outcomes.values())
    result.stdout.fnmatch_lines(
        [
            "*TestOrders::test_takes_acks_in_order*FAILED*",
            "*TransientError: no acks here*",
        ]
    )
