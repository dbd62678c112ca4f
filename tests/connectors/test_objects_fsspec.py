"""Objects through fsspec: a real SFTP server, and a file system that is in memory."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import fsspec
import pytest
from conduit_connectors import objects

from conduit_py.sdk import EndOfSource, FatalError, NothingYet, Reading, Record
from conduit_py.testing import destination_acceptance, source_acceptance


class _Server(asyncssh.SSHServer):
    """Lets one user in."""

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == ("tester", "not-a-secret")


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an SFTP server, and the folder that it shows."""
    folder = tmp_path_factory.mktemp("sftp")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=_Server,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=partial(asyncssh.SFTPServer, chroot=os.fsencode(folder)),
        )

    acceptor = asyncio.run_coroutine_threadsafe(listen(), loop).result(30)
    yield f"sftp://tester@127.0.0.1:{acceptor.get_port()}", folder
    acceptor.close()
    asyncio.run_coroutine_threadsafe(acceptor.wait_closed(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


PASSWORD: dict[str, Any] = {"store_options": {"password": "not-a-secret"}}


def some_files(sftp: tuple[str, Path], tmp_path: Path) -> objects.Source:
    address, folder = sftp
    inside = folder / tmp_path.name / "in"
    (inside / "b").mkdir(parents=True)
    (inside / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (inside / "b" / "c.jsonl").write_text('{"n": 3}\n{"n": 4}\n')
    return objects.Source(url=f"{address}/{tmp_path.name}/in/**/*.jsonl", **PASSWORD)


TestSftpSource = source_acceptance(some_files)


def a_folder(sftp: tuple[str, Path], tmp_path: Path) -> tuple[objects.Destination, Callable[[], list[Any]]]:
    address, folder = sftp
    out = folder / tmp_path.name / "out"

    def stored() -> list[Any]:
        return [record.payload.after for record in read_all(str(out / "*"))]

    return objects.Destination(url=f"{address}/{tmp_path.name}/out", rows_max=3, **PASSWORD), stored


TestSftpDestination = destination_acceptance(a_folder, refused=Record.of(b"raw"))


def read_all(url: str, position: bytes | None = None, **options: Any) -> list[Record]:
    made = objects.Source(url=url, **options)
    assert made.problems == []
    source = made.fresh()
    source.open(position)
    found: list[Record] = []
    try:
        while True:
            try:
                reading = source.read(100)
            except NothingYet:
                # The latest objects are about to settle.
                time.sleep(0.01)
                continue
            found += reading.records if isinstance(reading, Reading) else reading
    except EndOfSource:
        return found
    finally:
        source.teardown()


def test_files_of_sftp_are_moved_when_they_are_read(sftp: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = sftp
    inside = folder / tmp_path.name
    inside.mkdir()
    (inside / "a.txt").write_text("1\n2\n")
    made = objects.Source(
        url=f"{address}/{tmp_path.name}", after="move", move_to=f"{address}/{tmp_path.name}/_done", **PASSWORD
    )
    source = made.fresh()
    source.open(None)
    records = source.read(10)
    assert not isinstance(records, Reading)
    source.ack([record.position for record in records])
    source.teardown()

    assert [record.payload.after for record in records] == [b"1", b"2"]
    assert [path.name for path in (inside / "_done").iterdir()] == ["a.txt"]


def test_a_wrong_password_is_reported_without_it(sftp: tuple[str, Path]) -> None:
    with pytest.raises(FatalError, match=r"sftp://.* cannot be opened: .*[Aa]uthentication") as raised:
        read_all(f"{sftp[0]}/in", store_options={"password": "wrong word"})

    assert "wrong word" not in str(raised.value)


def test_a_file_system_without_times_needs_names_that_grow(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"/{tmp_path.name}/b.txt", b"b\n")
    first = read_all(f"memory:///{tmp_path.name}", on_replaced="new-only")
    files.pipe_file(f"/{tmp_path.name}/c.txt", b"c\n")

    assert [record.payload.after for record in first] == [b"b"]
    rest = read_all(f"memory:///{tmp_path.name}", first[-1].position, on_replaced="new-only")
    assert [record.payload.after for record in rest] == [b"c"]


def test_a_scheme_that_there_is_not_is_reported() -> None:
    with pytest.raises(FatalError, match="cannot be opened: Protocol not known: nosuch"):
        read_all("nosuch://host/in")
