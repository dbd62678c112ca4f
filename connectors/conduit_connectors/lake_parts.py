"""Files of a lake's table that tasks of Spark stage: how a task writes them, and how the driver takes and clears them.

They wait in hidden folders of the table, as the parts of a dataset do (decision 59). They get their places when the
driver applies the commit that names them.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import ClassVar, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from conduit_connectors.ignored_fields import IgnoredFields
from conduit_connectors.objects.staged_parts import (
    MANIFEST_MAX,
    RUN,
    Grant,
    PartFile,
    PartManifest,
    StagedParts,
    TaskGrant,
    abandoned_runs,
    clear_dead,
    fence_of,
    new_grant,
    unreached,
)
from conduit_connectors.policy_options import PolicyOptions
from conduit_py import sdk
from conduit_py.sdk import AckMode, Batch, FatalError, PartId, PieceRefused, StageCleared

OptionsT = TypeVar("OptionsT", bound=PolicyOptions)
HIDDEN = "_conduit"
Settle = Callable[[Sequence[str]], None]
"""Makes files durable that were written, by their paths, where the store does not do so when they are closed."""


class TaskWriter(Protocol):
    """What one task writes of a table."""

    schema: pa.Schema

    def write(self, rows: pa.Table) -> None: ...

    def manifest(self) -> bytes: ...

    def discard(self) -> None: ...


class LakeDestination(sdk.ManyWriterDestination[OptionsT]):
    """A table of a lake, whose files tasks of Spark may write. What is common to all of them is here."""

    acks: ClassVar[AckMode] = AckMode.FLUSH

    _rows: list[pa.Table]
    _schema: pa.Schema
    _ignored: IgnoredFields | None = None
    _parts: "TakenParts | None" = None
    """On a driver whose tasks stage: what they have staged."""
    _part: TaskWriter | None = None
    """In a task: what it stages."""

    @property
    @abstractmethod
    def rows_max(self) -> int:
        """How many rows a task holds before it writes a file."""

    @abstractmethod
    def open_task(self, grant: bytes, part: PartId) -> TaskWriter:
        """Raises PieceRefused if the table of the driver is not reached."""

    @abstractmethod
    def keep_rows(self, batch: Batch) -> dict[int, str]:
        """Add the rows that fit to `_rows`, and return why others do not."""

    @abstractmethod
    def grant(self) -> bytes: ...

    @abstractmethod
    def errors(self) -> AbstractContextManager[None]:
        """Translate the errors of the library."""

    def open_part(self, grant: bytes, part: PartId) -> None:
        self._rows, self._ignored = [], IgnoredFields()
        try:
            with self.errors():
                self._part = self.open_task(grant, part)
        except FatalError as error:
            # A library that is not installed here, or no access: the driver has opened the same table.
            raise PieceRefused(error.message, suggestion=error.suggestion) from error
        self._schema = self._part.schema

    def prepare(self, batch: Batch) -> dict[int, str]:
        refused = self.keep_rows(batch)
        if sum(rows.num_rows for rows in self._rows) >= self.rows_max:
            self._write_part()
        return refused

    def prepared(self) -> bytes:
        self._write_part()
        assert self._part is not None
        with self.errors():
            return self._part.manifest()

    def discard_part(self) -> None:
        if self._part is not None:
            self._part.discard()
            self._part = None
        self.teardown()

    def take(self, pieces: Sequence[bytes]) -> None:
        assert self._parts is not None
        with self.errors():
            self._parts.take(pieces)

    def teardown(self) -> None:
        # Every file is closed after it is written.
        if self._ignored is not None:
            self._ignored.report()
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def _write_part(self) -> None:
        rows, self._rows = self._rows, []
        assert self._part is not None
        if rows:
            with self.errors():
                self._part.write(pa.concat_tables(rows))


class LakeGrant(msgspec.Struct, frozen=True, array_like=True):
    """What a task needs to stage files of a table: the grant, and what the connector has read of the table."""

    grant: Grant
    table: bytes


class LakeFolder:
    """The hidden folders of a table, in a file system of Arrow. `root` is the folder that has them."""

    def __init__(self, files: pafs.FileSystem, root: str, shown: str, settle: Settle) -> None:
        self.files = files
        self.shown = shown
        self._root = root
        self._settle = settle

    def path(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{name}"

    def survey(self, folder: str) -> dict[str, int]:
        return {each.base_name: each.size for each in self._list(folder)}

    def discard(self, folder: str, names: Iterable[str]) -> None:
        for name in names:
            # Another process may have removed it.
            with suppress(FileNotFoundError):
                self.files.delete_file(self.path(folder, name))
        if folder.startswith(RUN) and not self._list(folder):
            with suppress(OSError):
                self.files.delete_dir(f"{self._root}/{folder}")

    def load_note(self, name: str) -> bytes | None:
        try:
            with self.files.open_input_file(f"{self._root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def store_note(self, folder: str, name: str, content: bytes) -> None:
        # Stores have none, and may refuse what Arrow would put there for one.
        if isinstance(self.files, pafs.LocalFileSystem | pafs.SubTreeFileSystem):
            self.files.create_dir(f"{self._root}/{folder}")
        # Buffered: the file system of Delta takes bytes only, and no buffers of Arrow.
        with self.files.open_output_stream(self.path(folder, name), buffer_size=65_536) as file:
            file.write(content)
        self._settle([self.path(folder, name)])

    def settle(self, names: Sequence[str]) -> None:
        self._settle(names)

    def clear(self, folder: str, fence: int) -> None:
        """Remove what was staged under this fence or a lower one."""
        self.discard(folder, [name for name in self.survey(folder) if 0 < fence_of(name) <= fence])

    def grant(self, owned: str | None, fence: int) -> Grant:
        """Let tasks stage, for an owner or for a run without one; remove what such runs have left long ago."""
        grant = new_grant(owned, fence)
        self.store_note(grant.folder, grant.marker, b"1")
        times = self.list_staged()
        # The clock of the store, which may be that of another machine.
        now = next((modified for name, modified in times if name == f"{grant.folder}/{grant.marker}"), 0.0)
        for folder in abandoned_runs(times, now):
            self.discard(folder, self.survey(folder))
        return grant

    def list_staged(self) -> list[tuple[str, float]]:
        """Return all that waits, as `folder/name` with its time."""
        found = [
            (each.path.partition(f"{self._root}/")[2], (each.mtime_ns or 0) / 1e9)
            for each in self._list("", recursive=True)
        ]
        # Some object stores list folders too, as files without a name.
        return [(path, modified) for path, modified in found if path.partition("/")[2]]

    def clear_dead(self, age_seconds: float, owner: str | None) -> StageCleared:
        """Remove what nobody needs any more, for a command."""
        return clear_dead(self, self.list_staged(), time.time(), age_seconds, owner)

    def _list(self, folder: str, *, recursive: bool = False) -> list[pafs.FileInfo]:
        where = f"{self._root}/{folder}".rstrip("/")
        found = self.files.get_file_info(pafs.FileSelector(where, allow_not_found=True, recursive=recursive))
        return [each for each in found if each.is_file and each.path.rstrip("/") != where]


class PartWriter:
    """What one task stages: files with names that no other attempt has, and their manifest."""

    def __init__(self, place: LakeFolder, grant: Grant, part: PartId) -> None:
        """Raises PieceRefused if the place of the grant is not reached."""
        if place.load_note(f"{grant.folder}/{grant.marker}") is None:
            raise unreached(place.shown)
        self.place = place
        self._task = TaskGrant(grant, part)
        self._files: list[PartFile] = []
        self._begun: list[str] = []
        self._handed_over = False

    @property
    def prefix(self) -> str:
        return self._task.prefix

    def new_name(self, suffix: str = ".parquet") -> str:
        return self._task.name(suffix)

    def path(self, name: str) -> str:
        return self.place.path(self._task.grant.folder, name)

    def begin(self, name: str) -> None:
        """Note a file before it is written, so that `discard` removes it."""
        self._begun.append(name)

    def add(self, name: str, size: int, about: bytes = b"") -> None:
        """Take a complete file into the manifest."""
        self._files.append(PartFile(name, "", size, about))

    def manifest(self) -> bytes:
        """Return what was added, in a size that does not depend on how much that is."""
        manifest = msgspec.msgpack.encode(PartManifest(self._task.part, self._files))
        if len(manifest) > MANIFEST_MAX:
            listed = self.new_name(".manifest.parquet")
            self.place.store_note(self._task.grant.folder, listed, msgspec.msgpack.encode(self._files))
            manifest = msgspec.msgpack.encode(PartManifest(self._task.part, [], listed))
        self._handed_over = True
        return manifest

    def discard(self) -> None:
        """Remove what no manifest names."""
        if not self._handed_over:
            # What cannot be removed now is by the driver, which lists the folder.
            with suppress(OSError):
                names = {*self._begun, *(file.waits_as for file in self._files)}
                self.place.discard(self._task.grant.folder, names)


class TakenFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a task has staged and the driver has taken: its path, and what the connector said of it."""

    path: str
    size: int
    about: bytes = b""


class TakenParts:
    """What the driver takes of tasks, until it is sealed into an intent or shown."""

    def __init__(self, place: LakeFolder, grant: Grant) -> None:
        self.grant = grant
        self._place = place
        self._parts = StagedParts(place, grant, place.shown)
        self._taken: list[TakenFile] = []

    def take(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            for file in self._parts.take(piece):
                path = self._place.path(self.grant.folder, file.waits_as)
                self._taken.append(TakenFile(path, file.size, file.about))

    def seal(self) -> list[TakenFile]:
        """Check that all files which were taken are whole, and return them."""
        self._parts.seal()
        taken, self._taken = self._taken, []
        return taken

    def mark_visible(self, paths: Iterable[str]) -> None:
        self._parts.mark_visible(path.rpartition("/")[2] for path in paths)

    def close(self) -> None:
        self._parts.close()


def why_one_writer(policy: PolicyOptions) -> str | None:
    """Return why only one writer can know the columns of a table; None if records do not change them."""
    return "records may change its columns: leave out on_new_field and on_type" if policy.changes_columns else None
