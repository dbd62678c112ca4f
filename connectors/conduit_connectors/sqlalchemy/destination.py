"""The SQLAlchemy destination: rows of any transactional database, with the checkpoint in the same transaction."""

from pathlib import Path
from typing import Required, Unpack

from pydantic import Field, SecretStr
from sqlalchemy.engine import Engine

from conduit_connectors.probe_path import probe_writable
from conduit_connectors.sql.database import SqlDatabase
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, RowEncoder, TableArguments, TableOptions
from conduit_connectors.sqlalchemy.any_database import AnyDatabase
from conduit_connectors.sqlalchemy.engine import make_engine, table_datasets
from conduit_connectors.sqlalchemy.known_databases import known_database
from conduit_connectors.sqlite import probe_file
from conduit_py.sdk import Dataset

_NAME_BYTES_MAX = 63


class DestinationOptions(TableOptions):
    """Options of the SQLAlchemy destination."""

    url: SecretStr = Field(description="the database, as dialect+driver://user:password@host:port/name")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]


class Destination(SqlDestination[DestinationOptions]):
    """Writes records as rows of any database that SQLAlchemy has a dialect for: appended, or one row per key.

    Exactly-once in an exactly-once pipeline (transactional): the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this database. At-least-once in any other, effectively
    once with `mode="upsert"`. The database must have transactions and savepoints; tables that have none, as those
    of some engines of MySQL, are the operator's to avoid.

    `sqlite`, `postgresql+psycopg` and `mysql+pymysql` behave as the connectors of these databases do, on connections
    that SQLAlchemy makes. Others are known by their dialect only: tables are created before the transaction and are not
    altered. So `on_new_field="add"` and other values of `on_type` than "refuse" are an error. There an upsert is an
    update, and an insert where no row was found. In tables that it creates there, all but numbers, truths and bytes is
    text.
    """

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[Dataset]:
        return table_datasets(self.options.url.get_secret_value(), self.options.table)

    @property
    def locks(self) -> str | None:
        engine = self._engine()
        return str(Path(engine.url.database or "").resolve()) if engine.dialect.name == "sqlite" else None

    def probe(self) -> str:
        engine = self._engine()
        if engine.dialect.name != "sqlite":
            return super().probe()
        # To connect would create the file. SQLite also takes a URI, whose path follows its scheme.
        path = Path((engine.url.database or "").removeprefix("file:"))
        if engine.dialect.driver == "pysqlite":
            return probe_file(path)
        return super().probe() if path.exists() else probe_writable(path)

    def connect(self) -> SqlDatabase:
        engine = self._engine()
        known = known_database(engine)
        return AnyDatabase(engine) if known is None else known.connect(engine)

    def make_encoder(self) -> RowEncoder:
        engine = self._engine()
        known = known_database(engine)
        return self._plain_encoder(engine) if known is None else known.like().encoder_for(self.options)

    def _plain_encoder(self, engine: Engine) -> RowEncoder:
        names = NameRules(
            columns_max=1000,
            reserved=("pg_", "sys", "information_schema"),
            bytes_max=min(engine.dialect.max_identifier_length, _NAME_BYTES_MAX),
            ignores_case=True,
        )
        return RowEncoder(self.options, names, int_max=2**63 - 1, finite=True)

    def _engine(self) -> Engine:
        return make_engine(self.options.url.get_secret_value())
