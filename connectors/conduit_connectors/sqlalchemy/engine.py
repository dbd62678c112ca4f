"""Engines of SQLAlchemy from an address, and what errors of any driver mean. No error quotes a password."""

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.pool import NullPool

from conduit_connectors.sql.database import NotThisRow, StatementRefused
from conduit_py.sdk import Dataset, FatalError, TransientError

_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
_REFUSED_USER = ("authentication failed", "Access denied", "password", "Login failed", "ORA-01017")


def make_engine(url: str) -> Engine:
    """Return an engine for an address. Raises FatalError if it is none, or if its driver is not installed."""
    address = _parse(url)
    try:
        # Connections are held for as long as they are used, so there is nothing to pool.
        return sa.create_engine(address, poolclass=NullPool)
    except (exc.NoSuchModuleError, ModuleNotFoundError) as error:
        missing = getattr(error, "name", None)
        raise FatalError(
            f"there is no driver for {address.drivername!r}" + (f": {missing} is not installed" if missing else ""),
            suggestion="install the package that has this dialect or driver, or correct `url`",
        ) from error
    except (exc.ArgumentError, TypeError) as error:
        raise _no_address() from error


def table_datasets(url: str, table: str | None) -> list[Dataset]:
    """Name a table for lineage, or a database, as their own connectors do."""
    address = _parse(url)
    kind = address.get_backend_name()
    if kind == "sqlite":
        return [Dataset(f"sqlite://{Path(address.database or '').absolute()}", table)] if table else []
    return Dataset.tables(
        url, [table] if table else [], port=_PORTS.get(kind, 0), schema="public" if kind == "postgresql" else ""
    )


def _parse(url: str) -> URL:
    try:
        address = make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise _no_address() from error
    # The rest of a password with a character of URLs in it, which drivers would quote in their errors.
    if "@" in (address.host or ""):
        raise _no_address()
    if address.get_backend_name() == "sqlite" and address.database in (None, "", ":memory:"):
        raise FatalError(
            "`url` names a database in memory, which ends with its connection", suggestion="name a file: sqlite:///a.db"
        )
    return address


def _no_address() -> FatalError:
    return FatalError(
        "`url` is no address of a database",
        suggestion="write it as dialect+driver://user:password@host:port/name, and special characters of the"
        " password as %40 for @, %3A for :, %2F for / and %25 for %",
    )


def translate(error: Exception, what: str) -> Exception:
    """Return what an error means for the caller of a statement. `what` names the kind of database."""
    if isinstance(error, UnicodeEncodeError):
        return NotThisRow("has half of a surrogate pair in a text, which no SQL text can carry")
    text = " ".join(str(getattr(error, "orig", None) or error).split())[:2000] or type(error).__name__
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return TransientError(f"{what}: {text}", suggestion="check the server and the connection to it")
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return NotThisRow(text)
    if isinstance(error, exc.ProgrammingError | exc.NotSupportedError | exc.CompileError | exc.NoSuchTableError):
        return StatementRefused(f"{what}: {text}", suggestion="check the table and the rights of the user")
    if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError | OSError):
        return TransientError(f"{what}: {text}", suggestion="check the server and the connection to it")
    return FatalError(f"{what}: {text}", suggestion="check `url`, the table and the rights of the user")


def connection_error(error: Exception, what: str) -> FatalError | TransientError:
    """Return what it means that no connection could be made."""
    text = " ".join(str(getattr(error, "orig", None) or error).split())[:2000]
    if any(sign in text for sign in _REFUSED_USER):
        # Fatal: tried again for ever, a wrong password can lock the account.
        return FatalError(f"{what} refuses the user: {text}", suggestion="check the user and the password in `url`")
    return TransientError(f"cannot connect to {what}: {text}", suggestion="check `url`, and that the server runs")
