"""Tables of lakes for tests: an Iceberg catalog in a folder, and what DuckDB reads from tables of all kinds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import duckdb
from conduit_connectors import iceberg
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from conduit_py.sdk import EndOfSource, NothingYet, Reading, Record

LAKE_MODULES = [
    *(f"conduit_connectors.{each}" for each in ("duckdb", "iceberg", "sqlalchemy")),
    *(f"pyiceberg.catalog.{each}" for each in ("rest", "sql")),
]
"""What a process that is forked for a lake has imported before."""


def catalog_of(folder: Path) -> dict[str, str]:
    """The properties of a catalog in a folder, whose tables are there too."""
    (folder / "lake").mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


class RacingCatalog(SqlCatalog):
    """A catalog to which somebody else commits just before our next commit: what `race` does, once."""

    race: ClassVar[Callable[[], object] | None] = None

    def commit_table(self, *arguments: Any) -> Any:
        race, RacingCatalog.race = RacingCatalog.race, None
        if race is not None:
            race()
        return super().commit_table(*arguments)


def racing(folder: Path) -> dict[str, str]:
    """The same catalog, in which commits can be forestalled."""
    plain = {name: value for name, value in catalog_of(folder).items() if name != "type"}
    return plain | {"py-catalog-impl": "lake_tables.RacingCatalog"}


def load(folder: Path) -> Catalog:
    return load_catalog("default", **catalog_of(folder))


def iceberg_table(folder: Path, name: str = "db.t") -> Table:
    return load(folder).load_table(name)


def iceberg_rows(folder: Path, order: str = "n", name: str = "db.t") -> list[dict[str, Any]]:
    """The rows of a table, as DuckDB reads the files that the current snapshot names; none if there is no table."""
    catalog = load(folder)
    if not catalog.table_exists(name):
        return []
    table = catalog.load_table(name)
    files = [task.file.file_path for task in table.scan().plan_files()]
    if not files:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(
            f'SELECT * FROM read_parquet(?, union_by_name = true, hive_partitioning = false) ORDER BY "{order}"',
            [files],
        )
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def opened(folder: Path, **options: Any) -> iceberg.Destination:
    destination = iceberg.Destination(table="db.t", **{"catalog": catalog_of(folder)} | options)
    assert destination.problems == []
    destination = destination.fresh()
    destination.open()
    return destination


def read_until_end(source: Any, position: bytes | None = None, n: int = 7) -> list[Record]:
    """The records of a source until it ends or waits; progress without a record is one without a payload."""
    source = source.fresh()
    records: list[Record] = []
    try:
        source.open(position)
        while True:
            reading = source.read(n)
            records += reading.records if isinstance(reading, Reading) else reading
    except (EndOfSource, NothingYet):
        return records
    finally:
        source.teardown()
