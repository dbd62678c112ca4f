"""Out of memory, descriptors or threads: an error of the moment, never of a record. The pipeline starts again."""

import errno
import os
import resource
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import (
    DeadLetter,
    DeadLetters,
    Destination,
    FatalError,
    Pipeline,
    Processor,
    Record,
    RecordRefused,
    Recovery,
    Retry,
    Source,
    processor,
    sdk,
)
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk import Batch
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

RECOVERY = Recovery(retries=5, delay_seconds=1, delay_max_seconds=1)


def no_descriptor() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE), "rates.json")


def wrapped() -> RecordRefused:
    refusal = RecordRefused("could not be enriched")
    refusal.__cause__ = no_descriptor()
    return refusal


SHORTAGES: dict[str, Callable[[], Exception]] = {
    "memory": MemoryError,
    "descriptors": no_descriptor,
    "of the machine": lambda: OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
    "threads": lambda: RuntimeError("can't start new thread"),
    "wrapped": wrapped,
    "in a nursery": lambda: ExceptionGroup("in a nursery", [MemoryError()]),
}


class Short:
    """Raises the first two times that it is called."""

    def __init__(self, kind: str = "memory") -> None:
        self.calls = 0
        self._make = SHORTAGES[kind]

    def __call__(self, *_: Any) -> bool:
        self.calls += 1
        if self.calls <= 2:
            raise self._make()
        return True


def steps(short: Short) -> dict[str, Any]:
    """Processors of every form, each of which is short of something at the record 4."""

    def each(record: Record) -> Record:
        if record.position == b"4":
            short()
        return record

    async def each_async(record: Record) -> Record:
        await trio.lowlevel.checkpoint()
        return each(record)

    @processor(batch=True)
    def whole(batch: Batch) -> list[Record]:
        return [each(record) for record in batch]

    @processor(batch=True)
    async def whole_async(batch: Batch) -> list[Record]:
        return [each(record) for record in batch]

    return {
        "each": each,
        "async": each_async,
        "batch": whole,
        "batch async": whole_async,
        "workers": Processor("workers", each, workers=2),
        "when": Processor("when", lambda record: record, when=lambda record: bool(each(record))),
    }


async def run(pipeline: Pipeline) -> Supervisor:
    supervisor = Supervisor(pipeline, MemoryStore(), recovery=RECOVERY)
    await supervisor.run()
    return supervisor


def recoveries(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the codes of the errors that the pipeline recovered from."""
    facts: list[dict[str, str]] = [getattr(line, "facts", {}) for line in caplog.records]
    return [each["code"] for each in facts if each.get("event") == "recovering"]


def made(log: EventLog, letters: list[DeadLetter], **parts: Any) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("source", ScriptedSource(records=6, log=log), batch_size=3)],
        **{"destinations": [Destination("lake", ScriptedDestination(name="lake", log=log))]}
        | {"dead_letters": DeadLetters(letters.append)}
        | parts,
    )


@pytest.mark.parametrize("form", list(steps(Short())))
@pytest.mark.parametrize("kind", SHORTAGES)
async def test_in_a_processor_no_record_is_refused_for_it(
    form: str, kind: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    log, letters, short = EventLog(), list[DeadLetter](), Short(kind)
    supervisor = await run(made(log, letters, processors=[steps(short)[form]]))

    assert (supervisor.state.status, letters) == (Status.COMPLETED, [])
    assert recoveries(caplog) == ["run.exhausted"] * 2
    assert short.calls > 2


async def test_a_retry_of_the_processor_comes_first(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    log, letters, short = EventLog(), list[DeadLetter](), Short()
    retried = Processor("retried", steps(short)["each"], retry=Retry(attempts=3, delay_seconds=0.001))
    supervisor = await run(made(log, letters, processors=[retried]))

    assert (supervisor.state.status, letters, recoveries(caplog)) == (Status.COMPLETED, [], [])
    assert supervisor.progress().recoveries == 0


async def test_in_a_condition_of_a_destination(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    log, letters, short = EventLog(), list[DeadLetter](), Short()
    lake = Destination("lake", ScriptedDestination(name="lake", log=log), when=short)
    supervisor = await run(made(log, letters, destinations=[lake]))

    assert (supervisor.state.status, letters) == (Status.COMPLETED, [])
    assert recoveries(caplog) == ["run.exhausted"] * 2


def shop(open_it: Callable[[], object]) -> Destination:
    """A destination that opens something first."""

    class Shop(sdk.DestinationConnector[sdk.Options]):
        def open(self) -> None:
            open_it()

        async def write(self, batch: Batch) -> None:
            return

    return Destination("shop", Shop())


@pytest.mark.parametrize("kind", ["memory", "descriptors", "threads"])
async def test_a_connector_that_calls_it_fatal_starts_again(
    kind: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    short = Short(kind)

    def open_it() -> None:
        try:
            short()
        except Exception as error:
            raise FatalError("the shop cannot be opened", suggestion="check the path") from error

    supervisor = await run(made(EventLog(), [], destinations=[shop(open_it)]))

    assert supervisor.state.status is Status.COMPLETED
    assert recoveries(caplog) == ["run.exhausted"] * 2


async def test_other_errors_of_a_connector_stay_fatal(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def open_it() -> None:
        raise FatalError("closed") from PermissionError(errno.EACCES, "denied")

    supervisor = await run(made(EventLog(), [], destinations=[shop(open_it)]))

    assert (supervisor.state.status, recoveries(caplog)) == (Status.DEGRADED, [])
    assert supervisor.error is not None
    assert supervisor.error.code == "run.fatal"


@pytest.mark.parametrize("kind", ["memory", "descriptors"])
async def test_a_handler_of_dead_letters_is_called_again(
    kind: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    letters: list[DeadLetter] = []
    short = Short(kind)

    def keep(letter: DeadLetter) -> None:
        short()
        letters.append(letter)

    def refuse(record: Record) -> Record:
        if record.position == b"4":
            raise RecordRefused("no")
        return record

    supervisor = await run(made(EventLog(), [], processors=[refuse], dead_letters=DeadLetters(keep)))

    assert supervisor.state.status is Status.COMPLETED
    assert [letter.position for letter in letters] == [b"4"]
    assert recoveries(caplog) == ["run.exhausted"] * 2


async def test_a_library_that_hides_why_is_asked_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite says only that it is unable to open the database file."""
    taken: list[int] = []
    tries = 0

    def free() -> None:
        while taken:
            os.close(taken.pop())

    def open_it() -> None:
        nonlocal tries
        tries += 1
        if tries > 1:
            free()
            return
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        raise FatalError("the shop cannot be used") from sqlite3.OperationalError("unable to open database file")

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(400, limits[0]), limits[1]))
    try:
        supervisor = await run(made(EventLog(), [], destinations=[shop(open_it)]))
    finally:
        free()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert supervisor.state.status is Status.COMPLETED
    assert recoveries(caplog) == ["run.exhausted"]
