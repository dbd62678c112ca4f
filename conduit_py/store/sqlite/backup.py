"""Backup and restore of a state directory: `state.db` and `letters.db`, as they were at one moment, and a manifest.

The process that uses a state holds its files alone, so SQLite's backup interface cannot read them from outside. They
are copied as files instead. While `hold_checkpoints` is in effect, a database file does not change, and its log only
gets more. So the file and a copy of its log are what was committed when the log was copied. The logs are copied first,
that of `state.db` whole before that of `letters.db`: a letter is durable before the position behind it, so no position
of the copy is past a record whose letter is missing.

That the files did not change is checked afterwards, and the copy is made again if they did.
"""

import hashlib
import itertools
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from conduit_py.crash_point import reach
from conduit_py.errors import EnvironmentUnfit, StateFailed
from conduit_py.store.sqlite.database import STATE, FileFormat
from conduit_py.store.sqlite.files import (
    UNFINISHED_RESTORE,
    StateLock,
    create_private,
    hold_checkpoints,
    sync_directory,
    unusable,
    whole_of,
)
from conduit_py.store.sqlite.letters import FORMAT as LETTERS

FILES: dict[str, FileFormat] = {"state.db": STATE, "letters.db": LETTERS}
"""Everything that belongs to a state directory, in the order in which it is copied. `lock` is empty of state."""
MANIFEST = "backup.json"
BACKUP_VERSION = 1
FENCE_STEP = 1_000_000
"""What a restore adds to every fence: more than a pipeline was ever started since the backup."""

_ATTEMPTS = 20
_BLOCK = 1024 * 1024
_LOG_HEADER = 32


class BackedUpFile(msgspec.Struct, frozen=True):
    """A file of a backup, and how to tell that it is whole."""

    name: str
    format_version: int
    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    """What a backup has, when it was taken, and by which version."""

    version: int
    created: str
    conduit_py: str
    """The version that wrote it, for people."""
    files: tuple[BackedUpFile, ...]


def back_up(directory: Path, target: Path, written_by: str = "") -> BackupManifest:
    """Copy the state in a directory to a new directory, whether a process uses it or not.

    The target has its name only once all of it is durable. Raises EnvironmentUnfit if it exists, or if there is no
    state; StateFailed if the state changed during every attempt.
    """
    if target.exists():
        raise EnvironmentUnfit(f"{target} exists", suggestion="name a directory that does not: it will be made")
    draft = target.with_name(f"{target.name}.part")
    try:
        # A backup that was killed may have left a part.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
        files = tuple(copy_state(directory, draft))
        manifest = BackupManifest(BACKUP_VERSION, datetime.now(UTC).isoformat(timespec="seconds"), written_by, files)
        create_private(draft / MANIFEST)
        (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        _sync(draft / MANIFEST)
        sync_directory(draft)
        reach("backup.before_rename")
        draft.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        raise EnvironmentUnfit(
            f"the backup {target} cannot be written: {error.strerror}",
            suggestion="check that this user may write there, and that the disk has space",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def copy_state(directory: Path, target: Path) -> Iterator[BackedUpFile]:
    """Copy the files of a state, each as one sound database, to an existing directory.

    Raises EnvironmentUnfit if there is no state.
    """
    if not _source_of(directory, "state.db"):
        raise EnvironmentUnfit(
            f"there is no state in {directory}",
            suggestion="give the directory that `run` or `serve` has used with --state",
        )
    _copy_at_one_moment(directory, target)
    for name, format in FILES.items():
        copy = target / name
        if copy.exists():
            version = _settle(copy, format)
            yield BackedUpFile(name, version, copy.stat().st_size, _digest(copy))


def read_backup(backup: Path) -> BackupManifest:
    """Return the manifest of a backup whose files are whole. Raises EnvironmentUnfit otherwise."""
    try:
        manifest = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=BackupManifest)
    except FileNotFoundError:
        raise EnvironmentUnfit(
            f"{backup} is not a backup: it has no {MANIFEST}",
            suggestion="name a directory that `conduit-py state backup` has made",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise _useless(f"{backup / MANIFEST} cannot be read: {error}") from error
    if manifest.version > BACKUP_VERSION:
        raise _newer(backup, f"version {manifest.version} of backups", f"version {BACKUP_VERSION}")
    for file in manifest.files:
        # The name of a file is a part of a path: only those that we know.
        if file.name not in FILES:
            raise _useless(f"{backup / MANIFEST} names {file.name!r}, which is no file of a state")
        format = FILES[file.name]
        if file.format_version > format.version:
            raise _newer(backup / file.name, f"format version {file.format_version}", f"versions 1 to {format.version}")
        try:
            whole = _digest(backup / file.name) == file.sha256
        except OSError as error:
            raise _useless(f"{backup / file.name} cannot be read: {error.strerror}") from error
        if not whole:
            raise _useless(f"{backup / file.name} is not what was backed up: its checksum differs")
    return manifest


def restore(backup: Path, directory: Path, *, replace: bool = False, allow_repeats: bool = False) -> Path | None:
    """Put a backup into a state directory. Files that were there are moved to a folder, which is returned.

    Raises StateLocked while a process uses the directory. Raises EnvironmentUnfit when it has a state, unless
    `replace`, or when the backup has exactly-once pipelines, unless `allow_repeats`. A crash half-way leaves a
    directory that refuses to be used until the restore is repeated.
    """
    manifest = read_backup(backup)
    if not allow_repeats and (owners := transactions_in(backup)):
        raise EnvironmentUnfit(
            f"{backup} has exactly-once pipelines ({', '.join(map(repr, owners))}): what they delivered after the "
            "backup is delivered again, except by destinations that carry the commit, which refuse the older state",
            suggestion="give --allow-repeats if they have not run since the backup, if their destinations were "
            "restored to the same moment, or if repeats do no harm",
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = StateLock.acquire_to_restore(directory)
        try:
            return _put(backup, directory, manifest, replace=replace)
        finally:
            lock.release()
    except OSError as error:
        raise unusable(directory, error) from error


def transactions_in(backup: Path) -> list[str]:
    """Return the pipelines and other owners of a backup that commit in transactions: those that are exactly-once."""
    with closing(sqlite3.connect(backup / "state.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'claims'").fetchone():
            return []
        rows = connection.execute("SELECT owner FROM claims WHERE committed > 0 ORDER BY owner").fetchall()
    return [owner for (owner,) in rows]


def _put(backup: Path, directory: Path, manifest: BackupManifest, *, replace: bool) -> Path | None:
    draft = directory / UNFINISHED_RESTORE
    # A restore that was not finished may be repeated: what it replaced is in its folder already.
    if any(directory.glob("*.db*")) and not (replace or draft.exists()):
        raise EnvironmentUnfit(
            f"{directory} has a state already",
            suggestion="restore to another directory, or give --force: what is there is then moved to a folder in it",
        )
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    sync_directory(directory)
    for file in manifest.files:
        create_private(draft / file.name)
        shutil.copyfile(backup / file.name, draft / file.name)
        _sync(draft / file.name)
    _raise_fences(draft / "state.db")
    reach("restore.before_move")
    replaced = _move_aside(directory)
    reach("restore.after_move")
    for file in manifest.files:
        (draft / file.name).rename(directory / file.name)
    sync_directory(directory)
    reach("restore.before_end")
    # Last: until here the directory refuses to be used.
    shutil.rmtree(draft)
    sync_directory(directory)
    return replaced


def _move_aside(directory: Path) -> Path | None:
    """Move the files of a state, logs included, to a folder of their own."""
    files = sorted(directory.glob("*.db*"))
    if not files:
        return None
    # A new one each time: a repeated restore must not overwrite what the first one has moved.
    named = f"replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    folder = next(path for n in itertools.count(1) if not (path := directory / f"{named}-{n}").exists())
    folder.mkdir(mode=0o700)
    for file in files:
        file.rename(folder / file.name)
    sync_directory(folder)
    sync_directory(directory)
    return folder


def _raise_fences(database: Path) -> None:
    """Fence every process that still uses what was backed up, and be newer than all that destinations have seen."""
    with closing(sqlite3.connect(database)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'claims'").fetchone():
            connection.execute("UPDATE claims SET fence = fence + ?", (FENCE_STEP,))
            connection.commit()
    _sync(database)


class _Cut:
    """One database at one moment: its file, and a copy of its log as it was when this was made."""

    def __init__(self, file: Path, target: Path) -> None:
        self.file, self._target = file, target
        self.log = file.with_name(f"{file.name}-wal")
        self._before = self._look()
        # A log of an earlier attempt would be applied to the new copy.
        for suffix in ("-wal", "-shm", "-journal"):
            target.with_name(f"{target.name}{suffix}").unlink(missing_ok=True)
        # To note its length is not enough. A log that began again has new commits in front of what is left of old
        # ones: its length stays, and a later copy would have commits that came after the moment.
        if self.log.exists():
            _copy_bytes(self.log, target.with_name(f"{target.name}-wal"), self.log.stat().st_size)

    def copy_file(self) -> None:
        _copy_bytes(self.file, self._target, None)

    def holds(self) -> bool:
        """Return True if neither the file nor what was copied of its log can have changed since."""
        return self._look() == self._before

    def _look(self) -> tuple[object, ...] | None:
        try:
            status = self.file.stat()
        except FileNotFoundError:
            return None
        try:
            with self.log.open("rb") as log:
                # SQLite writes a log from its beginning again only under another header, whose salt differs.
                header = (os.fstat(log.fileno()).st_ino, log.read(_LOG_HEADER))
        except FileNotFoundError:
            header = None
        return status.st_ino, status.st_size, status.st_mtime_ns, header


def _copy_at_one_moment(directory: Path, target: Path) -> None:
    with hold_checkpoints(directory):
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(0.05)
            try:
                cuts = [_Cut(source, target / name) for name in FILES if (source := _source_of(directory, name))]
                for cut in cuts:
                    cut.copy_file()
            except FileNotFoundError:
                # The owner has closed the state, or replaced a file after a disk error.
                continue
            if all(cut.holds() for cut in cuts):
                return
    raise StateFailed(
        f"the state in {directory} changed during each of {_ATTEMPTS} attempts to copy it",
        suggestion="try again; if it happens again, stop the process that uses it first",
    )


def _source_of(directory: Path, name: str) -> Path | None:
    """Return the file that counts: after a crash in a rescue, that is the whole copy."""
    whole = whole_of(directory / name)
    return next((file for file in (whole, directory / name) if file.exists()), None)


def _copy_bytes(source: Path, target: Path, size: int | None) -> None:
    target.unlink(missing_ok=True)
    create_private(target)
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(_BLOCK if size is None else min(_BLOCK, size)):
            writer.write(block)
            size = None if size is None else size - len(block)


def _settle(copy: Path, format: FileFormat) -> int:
    """Bring the log of a copy into its file, check all of it, and return its format version."""
    try:
        with closing(sqlite3.connect(copy)) as connection:
            # Ends the log: all of it is in the file then, and the file is alone.
            connection.execute("PRAGMA journal_mode = DELETE")
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            ours = connection.execute("PRAGMA application_id").fetchone()[0] == format.application_id
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise StateFailed(f"{copy.name} is damaged: {error}", suggestion=_DAMAGED) from error
    if problem != "ok" or not ours:
        reason = problem if ours else "it was not written by conduit-py"
        raise StateFailed(f"{copy.name} is damaged: {reason}", suggestion=_DAMAGED)
    _sync(copy)
    return version


_DAMAGED = "restore the backup before: this state cannot be backed up"


def _digest(file: Path) -> str:
    with file.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _newer(place: Path, found: str, known: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"{place} has {found}; this conduit-py can read {known}",
        suggestion="restore it with the version of conduit-py that made it, or a newer one: "
        "pip install --upgrade conduit-dataflow",
    )


def _useless(why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(why, suggestion="use another backup: this one cannot be restored")
