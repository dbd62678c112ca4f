"""The memory, generator, stdio and log connectors pass the acceptance suite."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from conduit_connectors import generator, memory, stdio
from conduit_connectors.log import Destination as LogDestination

from conduit_py.record import Record
from conduit_py.testing.acceptance import destination_acceptance, source_acceptance

NOT_JSON = Record.of({"n": float("nan")})


def a_list() -> memory.Source:
    return memory.Source(records=[{"n": 1}, b"raw", Record.of(None, key={"k": 1}), {}])


def a_growing_list() -> memory.Source:
    return memory.Source(records=[{"n": 1}, {"n": 2}, {"n": 3}], bounded=False)


def some_made_up() -> generator.Source:
    return generator.Source(count=300, operations=["create", "update", "delete"], collections=["a", "b"])


def made_up_without_end() -> generator.Source:
    return generator.Source(rate=1000, format="raw")


def standard_input() -> Iterator[stdio.Source]:
    reading, writing = os.pipe()
    os.write(writing, b'{"n": 1}\n{"n": 2}\nnot JSON\n{"n": 4}\n')
    os.close(writing)

    class Piped(stdio.Source):
        _fd: ClassVar[int] = reading

    yield Piped(format="json")
    os.close(reading)


TestMemorySource = source_acceptance(a_list)
TestGrowingMemorySource = source_acceptance(a_growing_list, records=3)
TestGeneratorSource = source_acceptance(some_made_up)
TestEndlessGeneratorSource = source_acceptance(made_up_without_end, records=20)
TestStdioSource = source_acceptance(standard_input)


def list_to_fill() -> tuple[memory.Destination, Callable[[], list[Any]], None]:
    kept: list[Record] = []
    return memory.Destination(into=kept), lambda: [record.payload.after for record in kept], None


def standard_output(capfd: pytest.CaptureFixture[str]) -> tuple[stdio.Destination, Callable[[], list[Any]]]:
    seen: list[Any] = []

    def stored() -> list[Any]:
        seen.extend(json.loads(line) for line in capfd.readouterr().out.splitlines())
        return seen

    return stdio.Destination(format="json"), stored


def process_log(caplog: pytest.LogCaptureFixture) -> tuple[LogDestination, Callable[[], list[Any]]]:
    caplog.set_level("INFO", "conduit_py.log")

    def stored() -> list[Any]:
        return [json.loads(message.removeprefix("saw "))["payload"]["after"] for message in caplog.messages]

    return LogDestination(message="saw"), stored


TestMemoryDestination = destination_acceptance(list_to_fill)
TestStdioDestination = destination_acceptance(standard_output, refused=NOT_JSON)
TestLogDestination = destination_acceptance(process_log, refused=NOT_JSON)
