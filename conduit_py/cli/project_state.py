"""The state of a project: one directory below the working directory, shared by `run`, `serve` and `doctor`.

Like the relative paths in a pipeline it belongs to the working directory: another folder is other data. Positions are
stored by the id of a pipeline. So the state also stores from which file each pipeline came, and refuses an id that
comes from another file: two pipelines with one id would skip each other's records.

Version 0.1 had a directory for each file that was run, and one for the server. They are used while they exist.
"""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from conduit_py.defaults import PROJECT_STATE, STATE_FOLDER
from conduit_py.errors import EnvironmentUnfit
from conduit_py.store.store import Store

_SERVER_OF_0_1 = Path(STATE_FOLDER, "serve")


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
