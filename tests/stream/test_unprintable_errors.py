"""Errors of user code whose `__str__` and `__repr__` raise: shown by the name of their class."""

from typing import Any

import pytest

from conduit_py import DeadLetters, Destination, Pipeline, Processor, Record, Retry, Source
from conduit_py.errors import RecordRefused
from conduit_py.status import Status
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource, run_to_end


class Unprintable(Exception):
    """What a client library raises whose text needs something that is missing."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


ERRORS = {
    "unprintable": (Unprintable(), "Unprintable: <Unprintable whose __str__ raises>"),
    "exiting": (Exiting(), "Exiting: <Exiting whose __str__ raises>"),
    "around one": (RecordRefused(Unprintable()), "<Unprintable whose __str__ raises>"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_processor_refuses_the_record_with_it(name: str, attempts: int) -> None:
    error, text = ERRORS[name]

    def step(record: Record) -> Record:
        if record.position == b"4":
            raise error
        return record

    log = EventLog()
    letters = ScriptedDestination(name="letters", log=log)
    seen = await run_to_end(
        Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=6, log=log))],
            processors=[Processor("step", step, retry=Retry(attempts=attempts, delay_seconds=0.001))],
            destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
            dead_letters=DeadLetters(letters),
        )
    )

    assert (seen.status, log.numbers("lake")) == (Status.COMPLETED, [0, 1, 2, 3, 5])
    after: Any = seen.dead_letters[0].payload.after
    assert after["error"] == text


@pytest.mark.parametrize("name", ["unprintable", "exiting"])
async def test_a_destination_that_raises_it_is_the_one_that_failed(name: str) -> None:
    error, text = ERRORS[name]

    def when(record: Record) -> bool:
        return True

    class Broken(ScriptedDestination):
        async def write(self, batch: Any) -> Any:
            raise error

    log = EventLog()
    seen = await run_to_end(
        Pipeline(
            "p",
            sources=[Source("source", ScriptedSource(records=6, log=log))],
            destinations=[
                Destination(
                    "lake", Broken(name="lake", log=log), retry=Retry(attempts=2, delay_seconds=0.001), when=when
                )
            ],
        )
    )

    assert seen.error is not None
    assert (seen.error.code, seen.error.node, seen.error.message) == (
        "node.failed",
        "lake",
        f"lake: write failed: {text}",
    )
