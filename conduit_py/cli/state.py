"""The state of a project: where it is, whose it is, and what the commands `state` do with it.

It is one directory below the working directory, shared by `run`, `serve` and `doctor`. Like the relative paths in a
pipeline it belongs to the working directory: another folder is other data. Positions are stored by the id of a
pipeline. So the state also stores from which file each pipeline came, and refuses an id that comes from another file:
two pipelines with one id would skip each other's records.

Version 0.1 had a directory for each file that was run, and one for the server. They are used while they exist.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import trio

from conduit_py import __version__
from conduit_py.cli.output import ExitCode, put, put_json, put_table
from conduit_py.defaults import PROJECT_STATE, STATE_FOLDER
from conduit_py.errors import EnvironmentUnfit
from conduit_py.redaction import SECRETS, secrets_in_text
from conduit_py.status import PipelineState
from conduit_py.store.sqlite.backup import (
    FILES,
    MANIFEST,
    BackupManifest,
    back_up,
    copy_state,
    read_backup,
    restore,
)
from conduit_py.store.store import Store, open_store

_SERVER_OF_0_1 = Path(STATE_FOLDER, "serve")
_POSTGRES_ADVICE = (
    "its tables are all in the schema conduit_py: back it up with `pg_dump --format=custom --schema=conduit_py "
    "--file=FILE DATABASE`, while pipelines run, and restore it with `pg_restore --dbname=DATABASE FILE`, while none do"
)


def choose_state(file: Path | None = None) -> Path:
    """Return the state directory of the project in the working directory; `file` is the one to run, if there is one."""
    for old in (*([_state_of_0_1(file)] if file else []), _SERVER_OF_0_1):
        if _database(old).exists():
            return old
    return Path(PROJECT_STATE)


async def claim_ids(store: Store, state: Path, files: Mapping[str, Path]) -> None:
    """Record from which file each pipeline comes. Raises EnvironmentUnfit if its state belongs elsewhere.

    `files` has the file of each pipeline by id. Use this only for the state of the project: who names another one
    decides what shares it.
    """
    for id, file in files.items():
        await _refuse_state_elsewhere(store, state, id, file)
        origin, path = await store.origin(id), _path_text(file)
        if origin is not None and origin != path and _still_defines(Path(origin), id):
            raise EnvironmentUnfit(
                f"the id {id!r} of {path} is also that of a pipeline in {origin}, whose positions are in {state}",
                suggestion="positions are stored by id: give one of them another id, or use --state for one of them",
            )
        if origin != path:
            await store.save_origin(id, path)


async def _refuse_state_elsewhere(store: Store, state: Path, id: str, file: Path) -> None:
    """A run of 0.1 left positions in another directory: starting without them would deliver everything again."""
    old = _state_of_0_1(file)
    if old == state or await store.positions(id) or not _has_positions(_database(old), id):
        return
    raise EnvironmentUnfit(
        f"pipeline {id!r} was run before with its positions in {old}, and {state} has none of it: "
        "it would deliver everything again",
        suggestion=f"continue with --state {old}, or remove that directory to start from the beginning",
    )


def _state_of_0_1(file: Path) -> Path:
    path = _path_text(file.with_suffix("") if file.suffix == ".py" else file)
    return Path(STATE_FOLDER, path.replace(os.sep, "~"))


def _path_text(file: Path) -> str:
    """Relative to the working directory, to which the state belongs too: the two may move together."""
    return os.path.relpath(file)


def _database(directory: Path) -> Path:
    return directory / "state.db"


def _has_positions(database: Path, id: str) -> bool:
    if not database.exists():
        return False
    query = "SELECT 1 FROM entries WHERE pipeline = ? AND kind = 'position'"
    try:
        with closing(sqlite3.connect(f"file:{database.absolute()}?mode=ro", uri=True)) as connection:
            return connection.execute(query, (id,)).fetchone() is not None
    except sqlite3.Error:
        # In use or damaged: it may have the positions, and only the user can know.
        return True


def _still_defines(file: Path, id: str) -> bool:
    """True if the id stands in the text of the file. Without it the pipeline was moved to another file."""
    try:
        return id in file.read_text(errors="replace")
    except OSError:
        return False


def back_up_state(target: Path, state: str | None, *, as_json: bool) -> ExitCode:
    """Copy a state directory to `target`, and print what the copy has."""
    directory = _directory(state, "back up")
    manifest = back_up(directory, target, __version__)
    if as_json:
        put_json({"backup": str(target), **msgspec.to_builtins(manifest)})
    else:
        put(f"{target} has the state in {directory} at {manifest.created}: {_files_text(manifest)}")
    return ExitCode.OK


def restore_state(backup: Path, state: str | None, *, replace: bool, allow_repeats: bool, as_json: bool) -> ExitCode:
    """Put a backup into a state directory, and print what that means."""
    directory = _directory(state, "restore")
    replaced = restore(backup, directory, replace=replace, allow_repeats=allow_repeats)
    if as_json:
        put_json({"state": str(directory), "replaced": None if replaced is None else str(replaced)})
        return ExitCode.OK
    put(f"{directory} has the state of {read_backup(backup).created}: what was delivered since is delivered again")
    if replaced is not None:
        put(f"the files that were there are in {replaced}: remove them when you no longer need them")
    return ExitCode.OK


def inspect_state(state: str | None, *, as_json: bool) -> ExitCode:
    """Print formats and content of a state or a backup, also of a state that is in use."""
    with _reader(state) as reader:
        found = {"place": reader.place, "formats": reader.formats, **_summarise(reader)}
    if as_json:
        put_json(found)
        return ExitCode.OK
    for each in reader.formats:
        put(f"{each['name']}: format version {each['version']}; this conduit-py writes version {each['newest']}")
    headings = ("PIPELINE", "STATUS", "POSITIONS", "LETTERS", "TRANSACTIONS")
    rows = [tuple(map(str, each.values())) for each in found["pipelines"]]
    put_table(headings, rows, right=headings[2:])
    put(f"outbox: {found['outbox']}, seen keys: {found['seen_keys']}, values of processors: {found['values']}")
    return ExitCode.OK


def upgrade_state(state: str | None, *, as_json: bool) -> ExitCode:
    """Migrate a state, and print from which version to which. One that is in use and up to date is left alone."""
    with _reader(state) as before:
        pass

    async def migrate() -> None:
        async with await open_store(state or choose_state()) as store:
            # The file of dead letters is opened by the first call that needs it.
            await store.letters.count()

    if any(each["version"] != each["newest"] for each in before.formats):
        trio.run(migrate)
    with _reader(state) as after:
        pass
    if as_json:
        put_json({"place": after.place, "before": before.formats, "after": after.formats})
        return ExitCode.OK
    for old, new in zip(before.formats, after.formats, strict=True):
        changed = old["version"] != new["version"]
        was = f" was version {old['version']} and" if changed else ""
        put(f"{new['name']}{was} is {'now ' if changed else ''}version {new['version']}")
    return ExitCode.OK


def _directory(state: str | None, doing: str) -> Path:
    place = state or str(choose_state())
    if "://" in place:
        raise EnvironmentUnfit(
            f"PostgreSQL has better tools to {doing} a state than conduit-py", suggestion=_POSTGRES_ADVICE
        )
    return Path(place)


class _Reader(NamedTuple):
    """A state that is open for reading: the place as people may see it, its formats, and its tables."""

    place: str
    formats: list[dict[str, Any]]
    tables: frozenset[str]
    rows: Callable[[str], list[Any]]


@contextmanager
def _reader(state: str | None) -> Iterator[_Reader]:
    """Open a state or a backup. Nothing is created or migrated."""
    place = state or str(choose_state())
    if "://" in place:
        with _read_postgres(place) as reader:
            yield reader
        return
    directory = Path(place)
    with ExitStack() as stack:
        if (directory / MANIFEST).exists():
            files = read_backup(directory).files
        else:
            # A copy: a process may use the state, and a recovery of its log would change the files.
            copy = Path(stack.enter_context(TemporaryDirectory(prefix="conduit-py-state-")))
            files = tuple(copy_state(directory, copy))
            directory = copy
        connection = stack.enter_context(closing(sqlite3.connect(":memory:")))
        tables: set[str] = set()
        for number, each in enumerate(files):
            connection.execute(f"ATTACH DATABASE ? AS file{number}", (str(directory / each.name),))
            tables.update(name for (name,) in connection.execute(f"SELECT name FROM file{number}.sqlite_master"))
        formats = [_format(each.name, each.format_version, FILES[each.name].version) for each in files]
        yield _Reader(place, formats, frozenset(tables), lambda sql: connection.execute(sql).fetchall())


@contextmanager
def _read_postgres(address: str) -> Iterator[_Reader]:
    SECRETS.add(*secrets_in_text(address))
    try:
        import psycopg

        from conduit_py.store.postgres.store import place
        from conduit_py.store.postgres.tables import FORMAT_VERSION, SCHEMA
    except ModuleNotFoundError as error:
        raise EnvironmentUnfit(
            "a state in PostgreSQL needs psycopg, which is not installed",
            suggestion="pip install 'conduit-dataflow[postgres]'",
        ) from error
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as opened:
            opened.execute(f"SET search_path = {SCHEMA}")
            opened.execute("SET default_transaction_read_only = on")
            names = opened.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [SCHEMA]).fetchall()
            tables = frozenset(name for (name,) in names)
            if "format" not in tables:
                raise EnvironmentUnfit(
                    f"there is no state in {place(address)}",
                    suggestion="give the database that `run` or `serve` has used with --state",
                )
            [(version,)] = opened.execute("SELECT version FROM format").fetchall()
            formats = [_format(f"schema {SCHEMA}", version, FORMAT_VERSION)]
            yield _Reader(place(address), formats, tables, lambda sql: opened.execute(sql).fetchall())
    except psycopg.Error as error:
        raise EnvironmentUnfit(
            f"the state in PostgreSQL cannot be read: {str(error).strip().splitlines()[0]}",
            suggestion="check the address and the user in --state, and that the server is running",
        ) from error


def _format(name: str, version: int, newest: int) -> dict[str, Any]:
    return {"name": name, "version": version, "newest": newest}


def _summarise(reader: _Reader) -> dict[str, Any]:
    """What a state has, by pipeline, in whatever version of the format it is."""
    rows = reader.rows
    positions = dict(rows("SELECT pipeline, count(*) FROM entries WHERE kind = 'position' GROUP BY pipeline"))
    states = dict(rows("SELECT pipeline, value FROM entries WHERE kind = 'state'"))
    letters = (
        dict(rows("SELECT pipeline, count(*) FROM letters GROUP BY pipeline")) if "letters" in reader.tables else {}
    )
    transactions = dict(rows("SELECT owner, committed FROM claims")) if "claims" in reader.tables else {}
    pipelines = [
        {
            "pipeline": id,
            "status": _status(states.get(id)),
            "positions": positions.get(id, 0),
            "letters": letters.get(id, 0),
            "transactions": transactions.get(id, 0),
        }
        for id in sorted({*positions, *states, *letters, *transactions})
    ]
    counts = {
        name: rows(f"SELECT count(*) FROM {table}")[0][0] if table in reader.tables else 0
        for name, table in (("outbox", "intents"), ("seen_keys", "seen"), ("values", "owned"))
    }
    return {"pipelines": pipelines, **counts}


def _status(encoded: bytes | None) -> str:
    if encoded is None:
        return "created"
    try:
        return str(msgspec.json.decode(encoded, type=PipelineState).status)
    except msgspec.DecodeError:
        return "unreadable"


def _files_text(manifest: BackupManifest) -> str:
    return ", ".join(f"{file.name} ({file.bytes / 1024:.0f} KB)" for file in manifest.files)
