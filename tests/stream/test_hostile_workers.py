"""`where="process"`: what hostile code returns, or does in its process, is an error as in a thread, and no more."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from builders import batch_of
from conduit_connectors import generator, memory
from hosted_worker import results_of
from process_tree import processes

from conduit_py import Destination, Pipeline, Processor, Record, Recovery, Source, processor
from conduit_py.errors import describe
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore


class Unreadable(Exception):
    """Nothing may look at it, and to pickle it ends the process."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        os._exit(7)


ODD_KEYS: Any = {5: 1, (1, 2): 2, None: "\ud800"}
HOSTILE: dict[str, Callable[[Record], Any]] = {
    "a number": lambda record: 5,
    "an object": lambda record: object(),
    "a tuple": lambda record: (record, record),
    "a generator": lambda record: (each for each in [record]),
    "a list with a number": lambda record: [record, 5],
    "a list of lists": lambda record: [[record]],
    "a class": lambda record: Record,
    "bytes": lambda record: b"raw",
    "an error": lambda record: ValueError("returned"),
    "an unreadable error": lambda record: Unreadable(),
    "keys that are no texts": lambda record: Record.of(ODD_KEYS),
}


def comparable(result: Any) -> Any:
    """A result without its identity: what the node says of a wrong one has the name of its class."""
    if isinstance(result, list):
        return [comparable(each) for each in result]
    if isinstance(result, Exception):
        return type(result).__name__, describe(result)
    return result.payload.after if type(result) is Record else type(result).__name__


async def outcome(declared: Processor) -> Any:
    try:
        return comparable(await results_of(declared, batch_of(Record.of({"n": 1}), Record.of({"n": 2}))))
    except Exception as error:
        return comparable(error)


@pytest.mark.parametrize("result", HOSTILE)
async def test_results_are_those_of_threads(result: str) -> None:
    """A wrong one within a list makes the list wrong, which the next test looks at."""
    in_process, in_thread = [
        await outcome(Processor("node", HOSTILE[result], where=where)) for where in ("process", "thread")
    ]

    assert in_process == in_thread or result.startswith("a list")


@pytest.mark.parametrize("result", [name for name in HOSTILE if "keys" not in name and "error" not in name])
async def test_a_wrong_result_ends_the_run_in_words_of_its_class(result: str) -> None:
    found = [await run_with(Processor("node", HOSTILE[result], where=where)) for where in ("process", "thread")]

    assert found[0] == found[1]
    assert found[0][0] is Status.DEGRADED
    assert "return a Record, None or a list of Records, or raise" in found[0][1]


@pytest.mark.parametrize("garbage", [b"\xff" * 16, b"\x05" + bytes(7) + b"abcde"])
async def test_a_process_whose_code_writes_to_our_connection_ends_with_its_run(garbage: bytes) -> None:
    """Or a library that uses descriptors which are not its own."""

    @processor(where="process")
    def write(record: Record) -> Record:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                connected = socket.socket(fileno=os.dup(int(name)))
                if connected.family == socket.AF_UNIX:
                    connected.send(garbage)
        return record

    status, error = await run_with(write)

    assert status is Status.DEGRADED
    assert error.startswith("write: ")
    assert not [each for each in processes(os.getpid()) if "worker_process import main" in each.command]


async def run_with(declared: Any) -> tuple[Status, str]:
    into: list[Record] = []
    pipeline = Pipeline(
        "p",
        sources=[Source("made", generator.Source(count=3, fields={"id": "index"}))],
        processors=[declared],
        destinations=[Destination("list", memory.Destination(into=into))],
    )
    state = await Supervisor(pipeline, MemoryStore(), recovery=Recovery(retries=0)).run()
    assert into == []
    return state.status, "" if state.error is None else state.error.message
