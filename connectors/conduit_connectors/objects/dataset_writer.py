"""DatasetWriter: rows into files of a dataset, which become visible whole, after the commit or when complete."""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from conduit_connectors.file.disk import advice
from conduit_connectors.objects.dataset_place import DatasetPlace, DraftFile, StagedFile
from conduit_connectors.objects.row_formats import RowFormat, RowPiece
from conduit_connectors.objects.row_writers import RowWriter
from conduit_connectors.objects.staged_parts import (
    MANIFEST_MAX,
    Grant,
    PartFile,
    PartManifest,
    StagedParts,
    clear_dead,
    owned_folder,
)
from conduit_py.sdk import Batch, PartId, StageCleared, TransientError

OPEN_FILES_MAX = 32


class FilesIntent(msgspec.Struct, frozen=True):
    """The files that a transaction makes visible. `folder` is where they wait, below the hidden folder."""

    folder: str
    files: list[StagedFile]


class FileLimits(NamedTuple):
    """When a file is complete."""

    rows_max: int
    size_max: int


class _OpenFile(NamedTuple):
    draft: DraftFile
    writer: RowWriter


class DatasetWriter:
    """Does what a staged destination does, for the destinations of Parquet files and of objects.

    One file of each folder is open, of at most 32 folders: what more of them need makes the one complete that was
    opened first. So memory and open files stay bounded, whatever records name.
    """

    def __init__(self, place: DatasetPlace, format: RowFormat, limits: FileLimits, shown: str) -> None:
        self._place = place
        self._format = format
        self._limits = limits
        self._shown = shown
        self._files: dict[str, _OpenFile] = {}
        self._complete: list[StagedFile] = []
        self._parts: StagedParts | None = None
        """On a driver of Spark whose tasks stage: what they have staged."""
        self._taken: list[StagedFile] = []
        self._part: PartId | None = None
        """In a task of Spark: the part that it stages."""
        self._part_files: list[PartFile] = []
        self._named_at = datetime.fromtimestamp(0, UTC)
        self._failed = False
        self._known_changes = 0
        self.ignored = format.ignored

    def open(self) -> None:
        with self._disk_errors():
            self._place.open()
            self._format.open()

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        with self._disk_errors():
            self._place.claim(owned_folder(owner), fence, expected=bool(intents))
        for intent in intents:
            self.apply(intent)
        with self._disk_errors():
            # A replaced run stages under a lower fence. It never commits, so its files are never applied.
            self._place.clear()

    def write(self, batch: Batch) -> dict[int, str]:
        self._check_usable()
        refused: dict[int, str] = {}
        with self._disk_errors(breaks=False):
            pieces = self._format.encode(batch, refused)
        with self._disk_errors():
            if self._format.changes != self._known_changes:
                # Each file has the same columns to its end.
                self._finish_all()
                self._known_changes = self._format.changes
            for piece in pieces:
                self._append(piece)
        return refused

    def flush(self) -> None:
        self._check_usable()
        with self._disk_errors():
            self._finish_all()
            self._place.show(None, self._complete)
            self._complete = []
            if self._parts is not None and self._taken:
                self._parts.seal()
                taken, self._taken = self._taken, []
                self._show(self._parts.grant.folder, taken)

    def stage(self) -> bytes | None:
        self._check_usable()
        assert self._place.owned is not None
        with self._disk_errors():
            self._finish_all()
            if self._parts is not None:
                self._parts.seal()
        complete, self._complete, self._taken = self._complete + self._taken, [], []
        return msgspec.json.encode(FilesIntent(self._place.owned, complete)) if complete else None

    def apply(self, intent: bytes) -> None:
        staged = msgspec.json.decode(intent, type=FilesIntent)
        with self._disk_errors():
            self._show(staged.folder, staged.files, again=True)

    def grant(self) -> bytes:
        """Let tasks stage for this run."""
        with self._disk_errors():
            if self._parts is None:
                self._parts = StagedParts(self._place, self._place.grant(), self._shown)
        return msgspec.msgpack.encode(self._parts.grant)

    def take(self, pieces: Sequence[bytes]) -> None:
        """Take the manifests of parts, in order, as if their rows were written."""
        self._check_usable()
        assert self._parts is not None
        with self._disk_errors():
            # Rows that were written before have an earlier name.
            self._finish_all()
            for piece in pieces:
                # M6: named here, part after part, so that the order of names is that of the records.
                taken = self._parts.take(piece)
                self._taken += [StagedFile(each.waits_as, each.folder + self._next_name()) for each in taken]

    def open_part(self, grant: bytes, part: PartId) -> None:
        """Get ready to stage a part, in a task."""
        with self._disk_errors():
            self._place.enter(msgspec.msgpack.decode(grant, type=Grant), part)
            self._format.open()
        self._part = part

    def clear_staged(self, age_seconds: float, owner: str | None) -> StageCleared:
        """Remove what nobody needs any more, on a writer that is not opened."""
        with self._disk_errors():
            return clear_dead(self._place, self._place.list_staged(), time.time(), age_seconds, owner)

    def stage_part(self) -> bytes:
        """Make what was written durable, and return its manifest."""
        self._check_usable()
        assert self._part is not None
        with self._disk_errors():
            self._finish_all()
            manifest = msgspec.msgpack.encode(PartManifest(self._part, self._part_files))
            if len(manifest) > MANIFEST_MAX:
                draft = self._place.create(".manifest")
                draft.file.write(msgspec.msgpack.encode(self._part_files))
                listed = self._place.complete(draft, "")
                manifest = msgspec.msgpack.encode(PartManifest(self._part, [], listed.waits_as))
        return manifest

    def _show(self, folder: str, files: Sequence[StagedFile], *, again: bool = False) -> None:
        # M1: nothing else gives a file of a task its name.
        self._place.show(folder, files, again=again)
        if self._parts is not None:
            self._parts.mark_visible(each.waits_as for each in files)

    def close(self) -> None:
        self.ignored.report()
        for each in self._files.values():
            each.writer.abandon()
            each.draft.discard()
        self._files = {}
        if self._parts is not None:
            self._parts.close()
        self._place.close()

    def _append(self, piece: RowPiece) -> None:
        rest: RowPiece | None = piece
        while rest is not None:
            file = self._files.get(piece.folder) or self._begin_file(piece.folder)
            part, rest = self._format.cut(rest, self._limits.rows_max - file.writer.rows)
            file.writer.write(part.rows, part.total)
            if file.writer.rows >= self._limits.rows_max or file.writer.size >= self._limits.size_max:
                self._finish_file(piece.folder)

    def _begin_file(self, folder: str) -> _OpenFile:
        if len(self._files) >= OPEN_FILES_MAX:
            self._finish_file(next(iter(self._files)))
        draft = self._place.create(self._format.suffix)
        try:
            self._files[folder] = _OpenFile(draft, self._format.writer(draft.file))
        except BaseException:
            draft.discard()
            raise
        return self._files[folder]

    def _finish_all(self) -> None:
        for folder in list(self._files):
            self._finish_file(folder)

    def _finish_file(self, folder: str) -> None:
        file = self._files[folder]
        file.writer.close()
        size = file.draft.file.tell()
        complete = self._place.complete(file.draft, folder + self._next_name())
        if self._part is None:
            self._complete.append(complete)
        else:
            self._part_files.append(PartFile(complete.waits_as, folder, size))
        del self._files[folder]

    def _next_name(self) -> str:
        """Return a name that sorts after all names of this run, and after those of earlier runs if the clock does."""
        self._named_at = max(datetime.now(UTC), self._named_at + timedelta(microseconds=1))
        return f"part-{self._named_at:%Y%m%dT%H%M%S-%f}-{secrets.token_hex(4)}{self._format.suffix}"

    def _check_usable(self) -> None:
        if self._failed:
            # Rows that were written before, and are not acked, are lost with their file. Only a new run reads them.
            raise TransientError(
                f"the file that was written in {self._shown} failed before",
                suggestion="see the first error; a restart begins a new file",
            )

    @contextmanager
    def _disk_errors(self, *, breaks: bool = True) -> Iterator[None]:
        """Translate errors. After one that `breaks` a file the writer is not used any more."""
        try:
            yield
        except OSError as error:
            self._failed = self._failed or breaks
            reason = error.strerror or str(error)
            hint = advice(error, Path(self._shown) / "x") if error.errno else "check the store"
            raise TransientError(f"cannot write to {self._shown}: {reason}", suggestion=hint) from error
        except TransientError:
            # Of a store: what of the batch was written is not known.
            self._failed = self._failed or breaks
            raise
