"""The connectors that are not files pass the acceptance suite as well; `tests/testing` has the files."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from conduit_connectors import generator, memory, stdio

from conduit_py.record import Record
from conduit_py.testing import destination_acceptance, source_acceptance


def numbers() -> generator.Source:
    return generator.Source(count=700, operations=["create", "update", "delete"])


def numbers_without_end() -> generator.Source:
    return generator.Source(format="raw", rate=1000)


def a_list() -> memory.Source:
    return memory.Source(records=[{"n": number} for number in range(12)])


def a_list_that_may_grow() -> memory.Source:
    return memory.Source(records=[b"1", b"2", b"3"], bounded=False)


TestGenerator = source_acceptance(numbers)
TestGeneratorWithoutEnd = source_acceptance(numbers_without_end, records=40)
TestMemorySource = source_acceptance(a_list)
TestUnboundedMemorySource = source_acceptance(a_list_that_may_grow, records=3)


def a_list_to_fill() -> tuple[memory.Destination, Callable[[], list[Any]], None]:
    into: list[Record] = []
    return memory.Destination(into=into), lambda: [record.payload.after for record in into], None


def a_pipe() -> Iterator[tuple[stdio.Destination, Callable[[], list[Any]]]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    read: list[bytes] = []

    def lines() -> list[bytes]:
        try:
            read.append(os.read(reader, 1 << 16))
        except BlockingIOError:
            read.append(b"")
        return b"".join(read).splitlines()

    yield type("DestinationOnPipe", (stdio.Destination,), {"_fd": writer})(format="lines"), lines
    os.close(reader)
    os.close(writer)


def raw_line(number: int) -> Record:
    return Record.of(b"line %d" % number, position=b"%d" % number)


TestMemoryDestination = destination_acceptance(a_list_to_fill)
TestStdioDestination = destination_acceptance(a_pipe, sample=raw_line, refused=Record.of({"not": "raw"}))
