"""What the source reads from the catalog of PostgreSQL: published tables, slots, types."""

from collections.abc import Iterable
from typing import Any

import msgspec

from conduit_connectors.postgres.column_values import BUILT_IN, CatalogType
from conduit_connectors.postgres.replication import parse_lsn
from conduit_connectors.postgres.session import DatabaseSession, quote_name


class PublishedTable(msgspec.Struct, frozen=True):
    """A table of a publication, with the columns and the rows that it publishes."""

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns that identify a row, in the order of their index; none if there is no such index."""
    row_filter: str | None = None
    partitioned: bool = False

    @property
    def collection(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"


class SlotState(msgspec.Struct, frozen=True):
    """A replication slot as the server sees it."""

    plugin: str
    database: str
    lost: bool
    confirmed: int | None


# A delete has the columns of the replica identity and no others, so they are the key, and else the primary key.
_KEY = """
    SELECT json_agg(a.attname ORDER BY k.n)
    FROM pg_class r, pg_index i, unnest(i.indkey) WITH ORDINALITY k(num, n), pg_attribute a
    WHERE r.oid = {oid} AND i.indrelid = r.oid
    AND CASE r.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
    AND k.n <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.num
"""


async def read_tables(session: DatabaseSession, publication: str, oid: int | None = None) -> list[PublishedTable]:
    """Return the tables of a publication, or this one of them, ordered by their names."""
    lists = session.server_version >= 150000
    # Before version 18 a generated column is never published, even if the view lists it.
    generated = "true" if session.server_version >= 180000 else "a.attgenerated = ''"
    found = await session.run(
        f"""
        SELECT c.oid::int8, p.schemaname, p.tablename, ({_KEY.format(oid="c.oid")}),
            {"p.rowfilter" if lists else "NULL::text"},
            (SELECT json_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {generated}
             AND {"(p.attnames IS NULL OR a.attname = ANY (p.attnames))" if lists else "true"}),
            c.relkind = 'p'
        FROM pg_publication_tables p
        JOIN pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
        WHERE p.pubname = $1 AND c.oid = coalesce($2::oid, c.oid) ORDER BY p.schemaname, p.tablename
        """,
        [publication, None if oid is None else str(oid)],
    )
    return [
        PublishedTable(
            int(oid), _text(schema), _text(name), _names(columns), _names(key), rows and rows.decode(), parts == b"t"
        )
        for oid, schema, name, key, rows, columns, parts in _all(found.rows)
    ]


async def has_publication(session: DatabaseSession, publication: str) -> bool:
    return bool((await session.run("SELECT 1 FROM pg_publication WHERE pubname = $1", [publication])).rows)


async def read_key(session: DatabaseSession, oid: int) -> tuple[str, ...]:
    """Return the columns that identify a row of a table; none if there are no such columns."""
    [[names]] = (await session.run(_KEY.format(oid="$1::oid"), [str(oid)])).rows
    return _names(names)


async def read_slot(session: DatabaseSession, slot: str) -> SlotState | None:
    """Return the state of a slot; None if there is none."""
    found = await session.run(
        "SELECT coalesce(plugin, 'none'), coalesce(database, ''), wal_status = 'lost', confirmed_flush_lsn"
        " FROM pg_replication_slots WHERE slot_name = $1",
        [slot],
    )
    for plugin, database, lost, confirmed in _all(found.rows):
        place = None if confirmed is None else parse_lsn(_text(confirmed))
        return SlotState(_text(plugin), _text(database), lost == b"t", place)
    return None


async def measure_log(session: DatabaseSession, slot: str) -> tuple[int, int | None]:
    """Return where the log is now, and how many bytes of it the server keeps for a slot; None without a slot."""
    found = await session.run(
        "SELECT pg_current_wal_lsn(), (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint"
        " FROM pg_replication_slots WHERE slot_name = $1)",
        [slot],
    )
    [[here, retained]] = found.rows
    return parse_lsn(_text(here or b"")), None if retained is None else int(retained)


async def create_slot(session: DatabaseSession, slot: str) -> int:
    """Create a slot that keeps every transaction from now on; return where it begins."""
    made = await session.run("SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput')", [slot])
    [[lsn]] = _all(made.rows)
    return parse_lsn(_text(lsn))


async def read_types(session: DatabaseSession, oids: Iterable[int], known: dict[int, CatalogType]) -> None:
    """Add these types, and all that they are made of, to `known`. One that was dropped is left out."""
    wanted = {oid for oid in oids if oid not in BUILT_IN and oid not in known}
    while wanted:
        found = await session.run(
            """
            SELECT t.oid::int8, format_type(t.oid, NULL), t.typtype, t.typcategory,
                CASE WHEN t.typcategory = 'A' THEN t.typelem::int8 ELSE 0 END,
                t.typbasetype::int8,
                coalesce((SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem), ','),
                (SELECT json_agg(json_build_array(a.attname, a.atttypid::int8) ORDER BY a.attnum) FROM pg_attribute a
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
                t.typtypmod
            FROM pg_type t WHERE t.oid = ANY ($1::oid[])
            """,
            ["{" + ",".join(map(str, sorted(wanted))) + "}"],
        )
        for oid, name, kind, category, element, base, delimiter, fields, modifier in _all(found.rows):
            parts = tuple((field, number) for field, number in msgspec.json.decode(fields or b"[]"))
            known[int(oid)] = CatalogType(
                int(oid),
                _text(name),
                _text(kind),
                _text(category),
                int(element),
                int(base),
                _text(delimiter),
                parts,
                int(modifier),
            )
        parts_of = {part for oid in wanted if oid in known for part in known[oid].parts()}
        wanted = {oid for oid in parts_of if oid not in BUILT_IN and oid not in known}


async def read_type_names(
    session: DatabaseSession, shapes: Iterable[tuple[int, int]], known: dict[tuple[int, int], str]
) -> None:
    """Add these types with their modifiers to `known`, as PostgreSQL writes them: numeric(12,2)."""
    missing = sorted({shape for shape in shapes if shape not in known})
    if not missing:
        return
    numbers = ["{" + ",".join(str(shape[at]) for shape in missing) + "}" for at in (0, 1)]
    found = await session.run(
        "SELECT coalesce(format_type(oid, modifier), '') FROM unnest($1::oid[], $2::int4[])"
        " WITH ORDINALITY t(oid, modifier, n) ORDER BY n",
        numbers,
    )
    known |= dict(zip(missing, (_text(name) for (name,) in _all(found.rows)), strict=True))


def _all(rows: list[tuple[bytes | None, ...]]) -> list[tuple[Any, ...]]:
    return rows


def _text(value: bytes) -> str:
    return value.decode()


def _names(value: bytes | None) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(value or b"[]"))
