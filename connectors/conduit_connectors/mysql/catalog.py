"""What the source reads from the catalog of MariaDB: its settings, tables, columns and collations."""

import re
from collections.abc import Sequence

import msgspec

from conduit_connectors.mysql.schemas import selected_type
from conduit_connectors.mysql.session import DatabaseStatements, quote_name


class ServerState(msgspec.Struct, frozen=True):
    """The settings of a server that matter for replication."""

    version: str
    identity: str
    """The number of the server, and what it calls itself."""
    gtids: str
    """The end of its log, as the last transaction of each domain."""
    ignores_case: bool
    """True if names of tables are stored in lower case."""
    settings: dict[str, str]


class TableColumn(msgspec.Struct, frozen=True):
    """A column as it is now."""

    name: str
    type_name: str
    charset: str | None
    native: str
    """The type with its size, as the schema has it."""


class SourceTable(msgspec.Struct, frozen=True):
    """A table as it is now."""

    database: str
    name: str
    engine: str
    versioned: bool
    """True if old versions of its rows are rows too."""
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    """The columns of the primary key; none if there is none, or if it has only the beginning of a column."""

    @property
    def collection(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.name)}"


_WANTED = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata")


async def read_server(session: DatabaseStatements) -> ServerState:
    [[version]] = await session.run("SELECT VERSION()")
    names = ", ".join(f"'{name}'" for name in (*_WANTED, "server_id", "server_uid", "lower_case_table_names"))
    found = await session.run(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names}, 'gtid_binlog_pos')")
    settings = {str(name): str(value) for name, value in found}
    identity = "/".join(filter(None, (settings.get("server_id"), settings.get("server_uid"))))
    gtids = settings.get("gtid_binlog_pos", "")
    ignores_case = settings.get("lower_case_table_names", "0") != "0"
    return ServerState(str(version), identity, gtids, ignores_case, {name: settings.get(name, "") for name in _WANTED})


def version_number(version: str) -> tuple[int, int] | None:
    """Return the version of a MariaDB; None for another server."""
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found and "mariadb" in version.lower() else None


async def read_collations(session: DatabaseStatements) -> dict[int, str]:
    """Return the character set of each collation, by its number."""
    view = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    listed = await session.run(
        "SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
        " AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'"
    )
    # Before 10.10 this view has no numbers, and the other one has all of them.
    source = view if listed[0][0] != "0" else "information_schema.COLLATIONS"
    found = await session.run(f"SELECT ID, CHARACTER_SET_NAME FROM {source} WHERE ID IS NOT NULL")
    return {int(number): str(name) for number, name in found}


async def list_tables(session: DatabaseStatements, database: str) -> list[str]:
    """Return the names of the tables of a database."""
    found = await session.run(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
        " AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY TABLE_NAME",
        [database],
    )
    return [str(name) for [name] in found]


async def read_table(session: DatabaseStatements, database: str, name: str) -> SourceTable | None:
    """Return a table; None if there is none, or none that the user may read."""
    found = await session.run(
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        " AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')",
        [database, name],
    )
    if not found:
        return None
    [[engine, kind]] = found
    columns = await session.run(
        "SELECT COLUMN_NAME, DATA_TYPE, CHARACTER_SET_NAME, COLUMN_TYPE, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION,"
        " NUMERIC_SCALE, DATETIME_PRECISION FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        [database, name],
    )
    parts = await session.run(
        "SELECT COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
        [database, name],
    )
    return SourceTable(
        database,
        name,
        str(engine),
        kind == "SYSTEM VERSIONED",
        tuple(
            TableColumn(str(name), str(kind).lower(), charset, selected_type(str(kind).lower(), *details))
            for name, kind, charset, *details in columns
        ),
        _whole_columns(parts),
    )


def _whole_columns(parts: Sequence[tuple[str, str | None]]) -> tuple[str, ...]:
    return () if any(size is not None for _, size in parts) else tuple(name for name, _ in parts)
