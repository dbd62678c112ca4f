"""All who may send to a queue choose addresses, so a reader opens only what its allowed prefixes hold."""

import gzip
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import sqlite_queue
from conduit_connectors.objects import ObjectOptions, ObjectReader

from conduit_py.queue.leased_queue import QueueOptions
from conduit_py.queue.message_body import LookAhead, ObjectRecord, ObjectThread
from conduit_py.record import Record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "secret.jsonl").write_text('{"password": "x"}\n')
    return folder


def payloads(address: str, *prefixes: Path | str) -> list[Any]:
    reader = ObjectReader(ObjectOptions(allowed_prefixes=[str(each) for each in prefixes]))
    return [part.record for part in reader.open(address, 0)]


@pytest.mark.parametrize("messages", ["uri", "s3"])
def test_addresses_need_allowed_prefixes(messages: Any) -> None:
    problems = sqlite_queue.Source(path="queue.db", messages=messages).problems

    assert [problem.message for problem in problems] == [
        f"Value error, messages={messages!r} needs allowed_prefixes: all who may send to the queue choose what is read"
    ]
    assert not sqlite_queue.Source(path="queue.db", messages=messages, allowed_prefixes=["s3://logs/"]).problems


@pytest.mark.parametrize("prefix", ["", "https://host/in", "s3:///key", "file://host/in"])
def test_a_prefix_must_be_a_path_or_the_address_of_a_folder(prefix: str) -> None:
    (problem,) = sqlite_queue.Source(path="queue.db", messages="uri", allowed_prefixes=[prefix]).problems

    assert problem.path.startswith("allowed_prefixes")


def test_what_a_prefix_holds_is_read(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "b c.jsonl.gz").write_bytes(gzip.compress(b'{"n": 2}\n'))

    assert payloads(str(folder / "a.jsonl"), folder) == [{"n": 1}]
    assert payloads(f"file://{folder}/a.jsonl", f"file://{folder}/") == [{"n": 1}]
    assert payloads(f"file://localhost{folder}/deep/b%20c.jsonl.gz", folder) == [{"n": 2}]
    assert payloads(str(folder / "deep" / ".." / "a.jsonl"), folder) == [{"n": 1}]
    assert payloads(str(folder / "a.jsonl"), folder / "a.jsonl") == [{"n": 1}]


def test_a_link_within_the_prefix_is_followed(folder: Path) -> None:
    (folder / "link.jsonl").symlink_to("a.jsonl")
    (folder.parent / "other").symlink_to(folder)

    assert payloads(str(folder / "link.jsonl"), folder) == [{"n": 1}]
    assert payloads(str(folder.parent / "other" / "a.jsonl"), folder) == [{"n": 1}]


@pytest.mark.parametrize("name", ["../secret.jsonl", "link.jsonl", "up/secret.jsonl", "%2e%2e/secret.jsonl"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_outside_of_the_prefix_is_refused_however_it_is_named(folder: Path, name: str, scheme: str) -> None:
    (folder / "link.jsonl").symlink_to(folder.parent / "secret.jsonl")
    (folder / "up").symlink_to(folder.parent)
    if "%" in name and not scheme:
        pytest.skip("only addresses are encoded")

    with pytest.raises(PermissionError, match="is outside of allowed_prefixes"):
        payloads(f"{scheme}{folder}/{name}", folder)


def test_a_folder_whose_name_begins_like_the_prefix_is_outside(folder: Path) -> None:
    (folder.parent / "in-private").mkdir()
    (folder.parent / "in-private" / "a.jsonl").write_text("{}\n")

    with pytest.raises(PermissionError, match="is outside"):
        payloads(str(folder.parent / "in-private" / "a.jsonl"), folder)


def test_without_prefixes_nothing_is_read(folder: Path) -> None:
    with pytest.raises(PermissionError, match="is outside"):
        payloads(str(folder / "a.jsonl"))


@pytest.mark.parametrize(
    "address",
    [
        "file:///proc/self/environ",
        "/proc/self/environ",
        "/proc/self/root/proc/self/environ",
        "/dev/zero",
        "/sys/kernel",
    ],
)
def test_the_machine_itself_is_no_object_even_when_everything_is_allowed(address: str) -> None:
    with pytest.raises(PermissionError, match="is outside"):
        payloads(address, "/")


def test_only_a_regular_file_is_read_and_nothing_hangs(folder: Path) -> None:
    os.mkfifo(folder / "pipe.jsonl")

    with pytest.raises(PermissionError, match="is not a regular file"):
        payloads(str(folder / "pipe.jsonl"), folder)
    with pytest.raises(PermissionError, match="is not a regular file"):
        payloads("/dev/zero", "/dev")
    with pytest.raises(PermissionError, match="is not a regular file"):
        payloads(str(folder), folder)
    with pytest.raises(FileNotFoundError):
        payloads(str(folder / "missing.jsonl"), folder)


def test_a_file_that_is_missing_outside_is_outside(folder: Path) -> None:
    with pytest.raises(PermissionError, match="is outside"):
        payloads(str(folder.parent / "missing.jsonl"), folder)


@pytest.mark.parametrize(
    "address",
    ["s3://logs-private/in/a", "s3://logs/input", "s3://logs/in/../private", "s3://logs/in/./../../x/a", "s3://logs"],
)
def test_a_key_outside_of_the_prefix_is_refused_before_anything_is_asked(address: str) -> None:
    with pytest.raises(PermissionError, match="is outside"):
        payloads(address, "s3://logs/in/")


def test_another_scheme_is_refused() -> None:
    with pytest.raises(PermissionError, match="announce paths, file: or s3: addresses"):
        payloads("https://example.com/a", "/")


async def test_a_read_that_takes_too_long_is_given_up_and_closed_when_it_ends() -> None:
    reading, release, closed = threading.Event(), threading.Event(), threading.Event()

    def parts() -> Iterator[ObjectRecord]:
        try:
            yield ObjectRecord(Record(), 1)
            reading.set()
            release.wait()
            yield ObjectRecord(Record(), 2)
        finally:
            closed.set()

    patient = ObjectThread(QueueOptions().read_seconds)
    content = await patient.run(lambda: LookAhead(parts()))
    with pytest.raises(trio.TooSlowError):
        await ObjectThread(0.05).run(lambda: content.take(2, 100))
    await trio.to_thread.run_sync(reading.wait)
    await patient.run(content.close)

    assert not closed.is_set()
    release.set()
    await trio.to_thread.run_sync(closed.wait)


async def test_reads_that_never_end_take_no_thread_from_others() -> None:
    release = threading.Event()
    thread = ObjectThread(0.02)
    try:
        for _ in range(50):
            with pytest.raises(trio.TooSlowError):
                await thread.run(release.wait)

        assert await trio.to_thread.run_sync(lambda: "free") == "free"
    finally:
        release.set()
