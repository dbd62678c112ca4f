"""Where the files of a dataset are written, wait and become visible: a folder of this machine, or of a store."""

import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from posixpath import basename, join
from typing import IO, Any, Protocol

import msgspec

from conduit_connectors.file.disk import make_folders, sync_path
from conduit_connectors.objects.store import ObjectStore
from conduit_py.sdk import FatalError

_STAGED = re.compile(r"(\d{12})-[0-9a-f]{16}\..+")
HIDDEN = "_conduit"
"""The folder in a dataset for what is not visible yet. Readers skip names that begin with an underscore."""


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A complete file: where it waits, and the name that it gets when it becomes visible."""

    waits_as: str
    name: str


class DraftFile(Protocol):
    """A file that is being written. Nobody sees it."""

    @property
    def file(self) -> IO[bytes]: ...

    def discard(self) -> None:
        """Remove it, also after an error of the disk."""
        ...


class DatasetPlace(Protocol):
    """Files wait in a hidden folder of their owner until they get their names."""

    owned: str | None
    """In an exactly-once pipeline: the hidden folder where its files wait for their commit."""

    def open(self) -> None:
        """Get ready, and remove what a killed process left."""
        ...

    def claim(self, owned: str, fence: int, *, expected: bool) -> None:
        """Use this hidden folder from now on. It must be there if it is `expected` to."""
        ...

    def clear(self) -> None:
        """Remove what was staged in the hidden folder under its fence or a lower one."""
        ...

    def load_note(self, name: str) -> bytes | None: ...

    def store_note(self, name: str, content: bytes) -> None: ...

    def create(self, suffix: str) -> DraftFile: ...

    def complete(self, draft: Any, name: str) -> StagedFile:
        """Make a draft durable, to wait for `show` under this name."""
        ...

    def show(self, owned: str | None, files: Sequence[StagedFile], *, again: bool = False) -> None:
        """Give files their names. With `again`, one that does not wait has or had its name already."""
        ...

    def close(self) -> None: ...


def staged_name(fence: int, suffix: str) -> str:
    # Random: a state that starts afresh counts its fences from one again.
    return f"{fence:012d}-{secrets.token_hex(8)}{suffix}"


def is_outdated(name: str, fence: int) -> bool:
    """Return True for a file that was staged under this fence or a lower one: it is never applied."""
    found = _STAGED.fullmatch(name)
    return found is not None and int(found[1]) <= fence


class LocalDraft:
    """A file that is locked while it is open, so that nobody takes it for a remnant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Buffered: an unbuffered file may write a part without an error, and Arrow would not notice.
        self.file = open(path, "xb")  # noqa: SIM115 - `complete` or `discard` closes it
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def discard(self) -> None:
        # Without flushing what is buffered, as `close` and `detach` do: the disk may be full.
        self.file.raw.close()
        self.path.unlink(missing_ok=True)


class LocalPlace:
    """A folder of this machine. A file gets its name by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden = path / HIDDEN
        self._open_files = self._hidden / "open"
        self._fence = 0
        self.owned: str | None = None

    def open(self) -> None:
        make_folders(self._open_files)
        for path in self._open_files.iterdir():
            try:
                with open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except (BlockingIOError, FileNotFoundError, IsADirectoryError):
                continue

    def claim(self, owned: str, fence: int, *, expected: bool) -> None:
        folder = self._hidden / owned
        if expected and not folder.is_dir():
            raise FatalError(
                f"{folder} is gone, where the files of the last transaction may have been",
                suggestion="put it back as it was; others must not change what is below _conduit",
            )
        make_folders(folder)
        self.owned, self._fence = owned, fence

    def clear(self) -> None:
        assert self.owned is not None
        for path in (self._hidden / self.owned).iterdir():
            if is_outdated(path.name, self._fence):
                path.unlink(missing_ok=True)

    def load_note(self, name: str) -> bytes | None:
        try:
            return (self._hidden / name).read_bytes()
        except FileNotFoundError:
            return None

    def store_note(self, name: str, content: bytes) -> None:
        path = self._hidden / name
        draft = path.with_name(f"{name}-{os.getpid()}")
        draft.write_bytes(content)
        sync_path(draft)
        draft.replace(path)
        sync_path(path.parent)

    def create(self, suffix: str) -> LocalDraft:
        if self.owned is None:
            return LocalDraft(self._open_files / f"{secrets.token_hex(8)}{suffix}")
        return LocalDraft(self._hidden / self.owned / staged_name(self._fence, suffix))

    def complete(self, draft: LocalDraft, name: str) -> StagedFile:
        draft.file.flush()
        os.fsync(draft.file.fileno())
        draft.file.close()
        if self.owned is not None:
            sync_path(self._hidden / self.owned)
        return StagedFile(draft.path.name, name)

    def show(self, owned: str | None, files: Sequence[StagedFile], *, again: bool = False) -> None:
        waiting = self._open_files if owned is None else self._hidden / owned
        folders = {waiting}
        for waits_as, name in ((each.waits_as, each.name) for each in files):
            target = self._path / name
            if target.parent != self._path:
                make_folders(target.parent)
            folders.add(target.parent)
            try:
                (waiting / waits_as).rename(target)
            except FileNotFoundError:
                # Only an intent may be applied twice. Else the rows of the file are nowhere, and must not be acked.
                if not again or not waiting.is_dir():
                    raise
        for folder in folders if files else ():
            sync_path(folder)

    def close(self) -> None:
        pass


class _SpooledDraft:
    """A file without a name on this machine, until it is uploaded."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - `complete` or `discard` closes it

    def discard(self) -> None:
        self.file.close()


class RemotePlace:
    """A folder of a store. A file is uploaded when it is complete, so nobody ever sees a part of it.

    In an exactly-once pipeline it is uploaded to the hidden folder, and moved by the store after the commit.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._fence = 0
        self.owned: str | None = None

    def open(self) -> None:
        pass

    def claim(self, owned: str, fence: int, *, expected: bool) -> None:
        self.owned, self._fence = owned, fence

    def clear(self) -> None:
        assert self.owned is not None
        for info in list(self._store.list(self._hidden(self.owned), None)):
            if is_outdated(basename(info.name), self._fence):
                self._store.remove(info.name)

    def load_note(self, name: str) -> bytes | None:
        info = self._store.find(self._hidden(name))
        if info is None:
            return None
        content = self._store.open(info)
        try:
            return content.read_at(0, info.size)
        finally:
            content.close()

    def store_note(self, name: str, content: bytes) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(content)
            self._store.put(self._hidden(name), file)

    def create(self, suffix: str) -> _SpooledDraft:
        return _SpooledDraft(suffix)

    def complete(self, draft: _SpooledDraft, name: str) -> StagedFile:
        draft.file.flush()
        if self.owned is None:
            # At once under its name: it is whole, and one that was never acked may be there twice.
            waits_as, target = "", join(self._path, name)
        else:
            waits_as = staged_name(self._fence, draft.suffix)
            target = join(self._hidden(self.owned), waits_as)
        self._store.put(target, draft.file)
        draft.file.close()
        return StagedFile(waits_as, name)

    def show(self, owned: str | None, files: Sequence[StagedFile], *, again: bool = False) -> None:
        for each in files if owned is not None else ():
            try:
                self._store.move(join(self._hidden(owned or ""), each.waits_as), join(self._path, each.name))
            except FileNotFoundError:
                if not again:
                    raise

    def close(self) -> None:
        self._store.close()

    def _hidden(self, name: str) -> str:
        return join(self._path, HIDDEN, name)
