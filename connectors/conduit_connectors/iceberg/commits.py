"""Commits of an Iceberg table: each transaction of a pipeline is visible once, even if several processes commit it."""

import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.upsert_util import create_match_filter

from conduit_connectors.iceberg.catalog import table_errors
from conduit_connectors.iceberg.data_files import (
    StagedDataFile,
    WrittenFiles,
    folder_of,
    remove_runs,
    restore_file,
    sync_files,
    with_settings,
)
from conduit_connectors.iceberg.task_files import MovedFile, move_files
from conduit_connectors.objects.staged_parts import owned_folder
from conduit_py.sdk import FatalError, Fenced, TransientError

_logger = logging.getLogger(__name__)

_ATTEMPTS = 20
_ALTER_ATTEMPTS = 10
_WAIT_SECONDS = 0.05
_KEYS_AT_ONCE = 1000


class Applied(NamedTuple):
    """The last transaction of a pipeline that a table has: its fence, its number, and the attempt that committed it."""

    fence: int
    number: int
    attempt: str


class TableIntent(msgspec.Struct, frozen=True):
    """What a transaction makes visible: files that are complete, and the file of the keys whose rows they replace."""

    owner: str
    fence: int
    number: int
    files: list[StagedDataFile]
    keys: str | None = None
    moved: list[MovedFile] = []
    """Those of the files that tasks of Spark have staged, which get their places before the commit."""


class TableCommits:
    """Commits files to a table: those of an intent once, by a property of the table that names the last one.

    The property and the files are one commit, which fails if anybody committed since the property was read. It is a
    property of the table, because snapshots, which name the transaction too, are deleted after some days.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self._name = name

    def append(self, files: Sequence[StagedDataFile], keys: pa.Table | None) -> None:
        """Commit files, and delete the rows with these keys that were there before."""
        self._commit(files, keys, None)

    def apply(self, intent: TableIntent) -> None:
        """Commit what an intent names, unless the table has it."""
        keys = None
        if (intent.keys is not None or intent.moved) and not self._has(intent):
            self.refresh()
        if intent.moved and not self._has(intent):
            self.move(intent.moved)
        if intent.keys is not None and not self._has(intent):
            with table_errors(self._name), self.table.io.new_input(intent.keys).open() as file:
                keys = pq.read_table(pa.PythonFile(file, mode="r"))
        self._commit(intent.files, keys, intent)
        if intent.keys is not None:
            with table_errors(self._name):
                _delete(self.table, intent.keys)

    def alter(self, change: Callable[[Any], None]) -> None:
        """Change the columns at once, by a function of an update: one without values changes nothing for readers."""
        for _ in range(_ALTER_ATTEMPTS):
            try:
                with table_errors(self._name), self.table.update_schema() as update:
                    change(update)
                return
            except CommitFailedException:
                self.refresh()
        raise FatalError(f"others change {self._name} all the time", suggestion="let one process do that")

    def move(self, moved: Sequence[MovedFile]) -> None:
        """Give files that tasks have staged their places, before the commit that names them."""
        with table_errors(self._name):
            move_files(self.table.io, self.table.metadata.location, moved)

    def check_fence(self, owner: str, fence: int) -> None:
        """Raise Fenced if the table has a transaction of a newer run of this pipeline."""
        applied = self.applied(owner)
        if applied is not None and applied.fence > fence:
            raise Fenced(
                f"{self._name} has a newer run of pipeline {owner!r} than this one, which has fence {fence}: "
                "another process runs it, or the state directory is not the one that was used before",
                suggestion="run a pipeline in one place at a time, always with the same state directory",
            )

    def clear(self, owner: str, fence: int) -> None:
        """Delete files of runs up to this fence that were never committed, and never will be."""
        applied = self.applied(owner) or Applied(0, 0, "")

        def is_orphan(run: int, path: str) -> bool:
            part, _, attempt = path.partition("/")[0].partition("-")
            if not part.isdigit():
                return False
            place = (run, int(part))
            # Of attempts to commit the same transaction one was successful, and its files are in the table.
            return place > applied[:2] or (place == applied[:2] and attempt not in ("", applied.attempt))

        folder = folder_of(self.table.metadata, f"conduit-{hash_of(owner)}")
        with table_errors(self._name):
            if not remove_runs(self.table.io, folder, applied.fence, fence, is_orphan):
                _logger.warning("cannot list the files of %r: what dead runs left in its store stays there", self._name)

    def applied(self, owner: str) -> Applied | None:
        """Return the last transaction of a pipeline that the table has, as it was last read."""
        text = self.table.properties.get(_property(owner))
        if text is None:
            return None
        fence, number, attempt = text.split(".")
        return Applied(int(fence), int(number), attempt)

    def refresh(self) -> None:
        """Read the table as it is now."""
        with table_errors(self._name):
            self.table.refresh()

    def _has(self, intent: TableIntent) -> bool:
        applied = self.applied(intent.owner)
        return applied is not None and applied[:2] >= (intent.fence, intent.number)

    def _commit(self, files: Sequence[StagedDataFile], keys: pa.Table | None, intent: TableIntent | None) -> None:
        for number in range(_ATTEMPTS):
            # A commit that adds files fails if anybody committed since the table was read. So it need not be read just
            # before the first attempt, which costs as much as some thousand rows.
            if number or not files:
                self.refresh()
            if intent is not None and self._has(intent):
                return
            try:
                with table_errors(self._name):
                    self._try_commit(files, keys, intent)
                return
            except CommitFailedException:
                # Somebody else committed. Whether that was this intent is seen in the next round.
                time.sleep(_WAIT_SECONDS * random.random() * 2 ** min(number, 6))
        raise TransientError(
            f"others commit to the Iceberg table {self._name} so often that we could not in {_ATTEMPTS} attempts",
            suggestion="let fewer processes write it, or commit larger transactions",
        )

    def _try_commit(self, files: Sequence[StagedDataFile], keys: pa.Table | None, intent: TableIntent | None) -> None:
        attempt = secrets.token_hex(8)
        summary, marks = _marks(intent, attempt)
        fence, number = (intent.fence, intent.number) if intent is not None else (0, 0)
        owner = intent.owner if intent is not None else ""
        place = f"conduit-{hash_of(owner)}/{fence:012d}/{number:09d}-{attempt}" if intent is not None else "conduit"
        written = WrittenFiles(self.table.io)
        table = with_settings(self.table, folder_of(self.table.metadata, place), written.io)
        transaction = _QuickTransaction(table)
        if keys is not None:
            for start in range(0, keys.num_rows, _KEYS_AT_ONCE):
                part = keys.slice(start, _KEYS_AT_ONCE)
                transaction.delete(create_match_filter(part, part.column_names), snapshot_properties=summary)
        if files:
            update = transaction.update_snapshot(snapshot_properties=summary)
            merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(restore_file(file, table.metadata))
        if marks:
            transaction.set_properties(marks)
        # Before the commit that refers to them: manifests, their lists, and the files in place of those with old rows.
        sync_files(table.metadata.location, written.paths)
        transaction.commit_transaction()
        sync_files(table.metadata.location, [table.metadata_location])
        # As the catalog answered it, without our settings.
        self.table.metadata, self.table.metadata_location = table.metadata, table.metadata_location


class _QuickTransaction(Transaction):
    """A transaction that makes its metadata once for each of its updates.

    The library copies all metadata whenever it looks at them: some 15 times in a commit, with all snapshots.
    """

    _made: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        count = len(self._updates)
        if self._made is None or self._made[0] != count:
            self._made = count, super().table_metadata
        return self._made[1]


def _marks(intent: TableIntent | None, attempt: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of the snapshot and those of the table that tell of a transaction."""
    if intent is None:
        return {}, {}
    number = f"{intent.fence}.{intent.number}"
    summary = {"conduit-py.pipeline": intent.owner, "conduit-py.transaction": number}
    return summary, {_property(intent.owner): f"{number}.{attempt}"}


def _property(owner: str) -> str:
    return f"conduit-py.applied.{hash_of(owner)}"


hash_of = owned_folder
"""A name for a pipeline that every store takes."""


def _delete(table: Table, path: str) -> None:
    if table.io.new_input(path).exists():
        table.io.delete(path)
