"""Opening a store: a directory is one of SQLite, an address that of a database."""

from pathlib import Path

from conduit_py.errors import EnvironmentUnfit
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store


async def open_store(state: str | Path) -> Store:
    """The store in a directory, or in PostgreSQL if `state` is written as postgresql://user@host/database.

    Raises EnvironmentUnfit when it cannot be used.
    """
    scheme, separator, _ = str(state).partition("://")
    if not separator or isinstance(state, Path):
        return await SqliteStore.open(Path(state))
    if scheme not in ("postgresql", "postgres"):
        raise EnvironmentUnfit(
            f"--state cannot be {scheme}://…",
            suggestion="give a directory, or a PostgreSQL database as postgresql://user@host/database",
        )
    return await _open_postgres(state)


async def _open_postgres(address: str) -> Store:
    try:
        from conduit_py.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise EnvironmentUnfit(
            "a state in PostgreSQL needs psycopg, which is not installed",
            suggestion="pip install 'conduit-dataflow[postgres]'",
        ) from error
    return await PostgresStore.open(address)
