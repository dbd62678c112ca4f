"""Tables of Delta: where they are, their columns, what a commit has added, and what errors mean."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from pydantic import SecretStr

from conduit_connectors.column_policy import check_new_column
from conduit_connectors.file.disk import sync_below
from conduit_py.sdk import FatalError, TransientError

_DENIED = re.compile(
    "<Code>(InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied)</Code>"
    "|lacked the necessary privileges|lacked valid authentication credentials"
)
"""What object stores answer to wrong keys, and what deltalake makes of it. No name of a partition can have a `<`."""


def table_files(uri: str, storage: Mapping[str, str]) -> pafs.FileSystem:
    """Return the files below a table, by their names in it, to write what waits for a commit."""
    if (folder := local_folder(uri)) is not None:
        # The library writes a local file beside its name, and lists none that a killed process left there.
        return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri, dict(storage)))


def settle(uri: str, names: Sequence[str]) -> None:
    """Sync local files of a table. Object stores make a file durable when it is closed."""
    if (folder := local_folder(uri)) is not None:
        # Folders too: those of a new partition, and of what is staged, may have just been made.
        sync_below(folder, [folder / name for name in names])


def local_folder(uri: str) -> Path | None:
    """Return the folder of a table on this machine; None for one in a store."""
    root = urlsplit(uri)
    return Path(unquote(root.path)) if root.scheme in ("", "file") else None


def table_place(path: str, storage: Mapping[str, SecretStr]) -> str:
    """Return where a table is, in the same words whatever way it is named; without anything secret."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme.lower() == "file":
        return os.path.realpath(unquote(rest) if separator else path)
    ends = [value.get_secret_value() for name, value in storage.items() if "endpoint" in name.lower()]
    # Buckets of two stores may have the same name. Passwords are before an "@".
    store = "".join(f" at {each.partition('://')[2].rpartition('@')[2].strip('/')}" for each in sorted(ends))
    kind = scheme.lower().replace("s3a", "s3")
    return f"{kind}://{'/'.join(filter(None, rest.rpartition('@')[2].split('/')))}{store}"


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all. Those from before a column was added have null there."""
    return pa.concat_tables(tables, promote_options="default")


def delta_field(name: str, kind: pa.DataType | None, taken: Sequence[str]) -> pa.Field:
    """Return the column for a field, in the type that Delta has for it. Raises ValueError if it can have none."""
    if isinstance(name, str) and _NO_COLUMN.search(name):
        raise ValueError("no column of a Delta table can have this name")
    kind = check_new_column(name, kind, taken)
    try:
        [field] = pa.schema(Schema.from_arrow(pa.schema([pa.field(name, kind)])))
    except Exception as error:  # a boundary: the library raises nothing more special for a type that Delta lacks
        raise ValueError(f"Delta has no type for {kind}") from error
    return field


_NO_COLUMN = re.compile("[ ,;{}()\n\t=]")
"""What the names of columns in Delta tables cannot have."""


class _Add(msgspec.Struct):
    path: str


class _Action(msgspec.Struct):
    add: _Add | None = None


def added_files(commit: bytes) -> list[str]:
    """Return the files that a commit of the table's log adds."""
    actions = (msgspec.json.decode(line, type=_Action) for line in commit.splitlines())
    return [unquote(action.add.path) for action in actions if action.add is not None]


def parse_columns(columns: Mapping[str, str]) -> Schema:
    """Return the columns of a table that is created. Raises FatalError for types that Delta lacks."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    try:
        return Schema.from_json(msgspec.json.encode({"type": "struct", "fields": fields}).decode())
    except (DeltaError, ValueError) as error:
        raise FatalError(
            f"`columns` cannot be parsed: {error}",
            suggestion='types are "string", "long", "integer", "double", "boolean", "date", "timestamp", '
            '"decimal(10,2)", "binary"',
        ) from error


@contextmanager
def table_errors(path: str) -> Iterator[None]:
    """Raise errors of the store as TransientError, those of the table as FatalError."""
    try:
        yield
    except (CommitFailedError, OSError) as error:
        if _DENIED.search(str(error)):
            advice = "check the keys in `storage`, and what they allow"
            raise FatalError(f"the store of the Delta table {path} refuses us: {error}", suggestion=advice) from error
        advice = "check the store, and who may write there"
        raise TransientError(f"the Delta table {path}: {error}", suggestion=advice) from error
    except (DeltaError, pa.ArrowException) as error:
        raise FatalError(f"the Delta table {path}: {error}", suggestion="check the table and its columns") from error
