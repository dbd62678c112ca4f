"""Where the files of a dataset are written, wait and become visible; and a folder of this machine as such a place."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from conduit_connectors.file.disk import make_folders, sync_path
from conduit_connectors.objects.staged_parts import (
    RUN,
    Grant,
    TaskGrant,
    WaitingFiles,
    abandoned_runs,
    new_grant,
    unreached,
)
from conduit_py.sdk import FatalError, PartId

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


class DatasetPlace(WaitingFiles, Protocol):
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

    def grant(self) -> Grant:
        """Let tasks of Spark stage for this run, and remove what runs without a fence have left long ago."""
        ...

    def list_staged(self) -> list[tuple[str, float]]:
        """Return all that waits in hidden folders, as `folder/name` with its time."""
        ...

    def enter(self, grant: Grant, part: PartId) -> None:
        """Stage for a part from now on, in a task. Raises PieceRefused if the place of the grant is not reached."""
        ...

    def store_note(self, name: str, content: bytes) -> None: ...

    def create(self, suffix: str) -> DraftFile: ...

    def complete(self, draft: Any, name: str) -> StagedFile:
        """Make a draft durable, to wait for `show` under this name."""
        ...

    def show(self, owned: str | None, files: Sequence[StagedFile], *, again: bool = False) -> None:
        """Give files their names. With `again`, one that does not wait has or had its name already."""
        ...

    def close(self) -> None: ...


def staged_name(fence: int, suffix: str, task: TaskGrant | None) -> str:
    if task is not None:
        return task.name(suffix)
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
        self._task: TaskGrant | None = None
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

    def grant(self) -> Grant:
        grant = new_grant(self.owned, self._fence)
        marker = self._hidden / grant.folder / grant.marker
        make_folders(marker.parent)
        marker.touch()
        # The clock of the disk, which may be that of another machine.
        for folder in abandoned_runs(self.list_staged(), marker.stat().st_mtime):
            self.discard(folder, self.survey(folder))
        return grant

    def list_staged(self) -> list[tuple[str, float]]:
        found = [path for path in self._hidden.glob("*/*") if path.parent != self._open_files and path.is_file()]
        return [(f"{path.parent.name}/{path.name}", _modified(path)) for path in found]

    def enter(self, grant: Grant, part: PartId) -> None:
        if not (self._hidden / grant.folder / grant.marker).is_file():
            raise unreached(str(self._path))
        self.owned, self._fence, self._task = grant.folder, grant.fence, TaskGrant(grant, part)

    def survey(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in (self._hidden / folder).iterdir():
            # A task that ended meanwhile may have removed its own.
            with suppress(FileNotFoundError):
                found[path.name] = path.stat().st_size
        return found

    def discard(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            (self._hidden / folder / name).unlink(missing_ok=True)
        if folder.startswith(RUN):
            # Not if a file is left in it, and not twice.
            with suppress(OSError):
                (self._hidden / folder).rmdir()

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
        return LocalDraft(self._hidden / self.owned / staged_name(self._fence, suffix, self._task))

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


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
