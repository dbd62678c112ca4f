"""Bad state directories: foreign, damaged or in use."""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_folder import Folder


def make_file(state: Path) -> None:
    state.write_text("mine")


def make_garbage(state: Path) -> None:
    state.mkdir()
    (state / "state.db").write_bytes(b"garbage" * 1000)


def make_foreign(state: Path) -> None:
    state.mkdir()
    with sqlite3.connect(state / "state.db") as connection:
        connection.execute("CREATE TABLE mine (value)")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_file, ("error: state directory state cannot be used: it is, or lies below, a file", "with --state")),
        (make_garbage, ("error: state/state.db is damaged", "put back a copy", "--state")),
        (make_foreign, ("error: state/state.db was not written by conduit-py", "move it away")),
    ],
)
def test_state_that_is_not_ours_is_left_as_it_is(
    folder: Folder, make: Callable[[Path], None], words: Sequence[str]
) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    state = folder.path / "state"
    make(state)
    before = (state if state.is_file() else state / "state.db").read_bytes()

    assert folder.run("--state", "state").has(3, *words)
    assert (state if state.is_file() else state / "state.db").read_bytes() == before
    assert folder.arrived() == []
    assert folder.run("--state", "another").has(0)
    assert folder.arrived() == [1, 2]


def test_damaged_state_is_never_believed_and_a_copy_of_it_goes_on(folder: Folder) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    first = folder.run()
    state = folder.path / ".conduit" / "state" / "state.db"
    sound = state.read_bytes()
    state.write_bytes(sound[:4096] + b"\xff" * (len(sound) - 4096))
    damaged = folder.run()
    state.write_bytes(sound)
    with (folder.path / "in.jsonl").open("a") as file:
        file.write('{"n":3}\n')

    assert first.has(0)
    assert damaged.has(3, "error: .conduit/state/state.db is damaged", "put back a copy")
    assert folder.run().has(0)
    assert folder.arrived() == [1, 2, 3]


def test_state_in_use_is_refused_until_it_is_free(folder: Folder) -> None:
    folder.numbers(1, 2)
    folder.pipeline()
    state = folder.path / "state"
    state.mkdir()
    with (state / "lock").open("w+") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = folder.run("--state", "state")

    assert refused.has(3, f"error: state directory state is in use by process {os.getpid()}", "stop that process")
    assert folder.arrived() == []
    assert folder.run("--state", "state").has(0)
    assert folder.arrived() == [1, 2]


# Processors that fail.
