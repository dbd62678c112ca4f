"""How the tests of connectors call them: directly, as the runtime would, without a pipeline; and broken disks."""

import ctypes
import inspect
import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet, Reading


@pytest.fixture(scope="session")
def read_all() -> Callable[..., list[Record]]:
    """Open a source with a sync `open`, read it `n` records at a time until it ends or waits, tear it down."""

    def read(source: Any, position: bytes | None = None, n: int = 7) -> list[Record]:
        return [record for record, _ in _read(source, position, n)]

    return read


@pytest.fixture(scope="session")
def read_refused() -> Callable[..., list[tuple[Any, str]]]:
    """The same, but only what was refused: `payload.after` and the reason."""

    def read(source: Any, position: bytes | None = None, n: int = 7) -> list[tuple[Any, str]]:
        return [(record.payload.after, reason) for record, reason in _read(source, position, n) if reason is not None]

    return read


def _read(source: Any, position: bytes | None, n: int) -> list[tuple[Record, str | None]]:
    records: list[tuple[Record, str | None]] = []
    source = source.fresh()
    try:
        source.open(position)
        while True:
            reading = trio.run(source.read, n) if inspect.iscoroutinefunction(source.read) else source.read(n)
            if not isinstance(reading, Reading):
                reading = Reading(reading, {})
            assert 1 <= len(reading.records) <= n
            records += [(record, reading.refused.get(index)) for index, record in enumerate(reading.records)]
    except (EndOfSource, NothingYet):
        return records
    finally:
        source.teardown()


@pytest.fixture(scope="session")
def with_failing_call() -> Callable[[str, int, Callable[[], None]], None]:
    """Run a function while the kernel fails one system call for it, as it would with a broken disk."""

    def run(call: str, errno: int, function: Callable[[], None]) -> None:
        raised: list[BaseException] = []

        def work() -> None:
            try:
                _fail(call, errno)
                function()
            except BaseException as error:
                raised.append(error)

        # A filter cannot be taken back, but it ends with the thread that installed it.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return run


_opened: set[Path] | None = None


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | Path):
        _opened.add(Path(arguments[0]))


sys.addaudithook(_note_opened)


@pytest.fixture
def synced() -> Iterator[set[Path]]:
    """Which files and folders Python has opened. A folder is opened to be synced, and for nothing else."""
    global _opened
    _opened = set()
    yield _opened
    _opened = None


_CALLS = {
    "fsync": {"x86_64": 74, "aarch64": 82},
    "fdatasync": {"x86_64": 75, "aarch64": 83},
    "ftruncate": {"x86_64": 77, "aarch64": 46},
}


def _fail(call: str, errno: int) -> None:
    number = _CALLS[call].get(platform.machine())
    if number is None or platform.system() != "Linux":
        pytest.skip("can fail system calls on Linux only")
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the call
            (0x15, 0, 1, number),  # skip one instruction if it is another
            (0x06, 0, 0, 0x00050000 | errno),  # fail with errno
            (0x06, 0, 0, 0x7FFF0000),  # let it through
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
        pytest.skip("the kernel does not allow seccomp filters here")
