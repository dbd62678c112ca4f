"""A process that uses a state directory, for tests that kill it. It tells on standard output what it did.

store_child.py write DIRECTORY CALLERS    save ever newer positions; a line for each that was acknowledged
store_child.py hold DIRECTORY             open the store, say so, wait
store_child.py fork DIRECTORY             open the store, fork a child that says its pid, wait both
store_child.py exec DIRECTORY             start a program, say its pid, wait both
store_child.py too-big DIRECTORY          save until a file may not grow, then again when it may
store_child.py as-nobody DIRECTORY        open the store without the rights of root
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from conduit_py.errors import ConduitError
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore

NO_SECCOMP = 77
"""Exit code where the kernel lets no process filter its own system calls."""


def tell(*words: object) -> None:
    # One write call per line: a line is whole or absent, wherever the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def write(directory: Path, callers: str) -> None:
    store = await SqliteStore.open(directory)

    async def save(pipeline: str) -> None:
        start = int((await store.positions(pipeline)).get("web", b"0"))
        for number in range(start + 1, start + 100_000):
            await store.save_positions(pipeline, {"web": b"%d" % number, "shop": b"%d" % number})
            tell(pipeline, number)

    async with trio.open_nursery() as nursery:
        for caller in range(int(callers)):
            nursery.start_soon(save, f"pipeline-{caller}")


async def hold(directory: Path) -> None:
    async with await SqliteStore.open(directory):
        tell("open", os.getpid())
        await trio.sleep_forever()


async def fork(directory: Path) -> None:
    async with await SqliteStore.open(directory):
        if os.fork() == 0:
            tell("child", os.getpid())
            signal.pause()
        await trio.sleep_forever()


async def execute(directory: Path) -> None:
    async with await SqliteStore.open(directory):
        # close_fds=False: only close-on-exec keeps the lock out of the child. It tells of itself, because
        # its parent goes on a moment before the kernel has closed the files.
        program = "import os, signal; os.write(1, b'child %d\\n' % os.getpid()); signal.pause()"
        await trio.lowlevel.open_process([sys.executable, "-c", program], close_fds=False)
        await trio.sleep_forever()


async def too_big(directory: Path) -> None:
    async with await SqliteStore.open(directory) as store:
        await store.save_positions("orders", {"web": b"before"})
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
        await report(store, b"x" * 1_000_000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await report(store, b"after")
        tell("read", (await store.positions("orders"))["web"].decode())


async def renew(directory: Path) -> None:
    """Break the store with writes that are too large, time after time, and go on; to be killed on the way."""
    async with await SqliteStore.open(directory) as store:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for number in range(1000):
            await store.save_positions("orders", {"web": b"%d" % number, "size": b"x" * 5000})
            tell("saved", number)
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
            with suppress(ConduitError):
                await store.save_positions("orders", {"web": b"too large", "size": b"x" * 1_000_000})
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


async def no_sync(directory: Path) -> None:
    database = StateDatabase.open(directory)
    # The first commit to a log syncs its header too; the next must sync for its own sake.
    database.connection.execute("INSERT INTO entries VALUES ('orders', 'position', 'web', x'30')")
    # Threads started from here on inherit it, and so the store's does.
    fail_syncs()
    async with SqliteStore(database) as store:
        await report(store, b"first")
        await report(store, b"second")
        tell("commits", store.commits)


def fail_syncs() -> None:
    """Have the kernel answer every fsync and fdatasync of this thread, and of those it starts, with EIO."""
    fsync, fdatasync = {"x86_64": (74, 75), "aarch64": (82, 83)}[platform.machine()]
    program = [
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 2, 0, fsync),
        (0x15, 1, 0, fdatasync),
        (0x06, 0, 0, 0x7FFF0000),  # allow
        (0x06, 0, 0, 0x00050000 | errno.EIO),  # fail
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    header = struct.pack("HP", len(program), ctypes.addressof(filters))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        sys.exit(NO_SECCOMP)


async def report(store: SqliteStore, position: bytes) -> None:
    try:
        await store.save_positions("orders", {"web": position})
    except ConduitError as error:
        tell(error.code, error, type(error.__cause__).__name__)
    else:
        tell("saved")


async def as_nobody(directory: Path) -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        async with await SqliteStore.open(directory):
            tell("open")
    except ConduitError as error:
        tell(error.code, error, error.suggestion)


ACTIONS: dict[str, Callable[..., Awaitable[None]]] = {
    "write": write,
    "hold": hold,
    "fork": fork,
    "exec": execute,
    "too-big": too_big,
    "no-sync": no_sync,
    "renew": renew,
    "as-nobody": as_nobody,
}

if __name__ == "__main__":
    trio.run(ACTIONS[sys.argv[1]], Path(sys.argv[2]), *sys.argv[3:])
