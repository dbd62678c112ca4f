"""The PostgreSQL destination: writes rows, one by one or in pieces that were prepared elsewhere."""

from collections.abc import Sequence
from typing import ClassVar, Required, Unpack

import msgspec
from pydantic import Field, SecretStr

from conduit_connectors.postgres.copy_in import CopyEncoder, CopyText, copy_in
from conduit_connectors.postgres.database import PostgresDatabase
from conduit_connectors.sql.database import NotThisRow, SqlDatabase
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, TableArguments, TableOptions
from conduit_connectors.sql.table_writer import TableWriter
from conduit_py import sdk
from conduit_py.sdk import Batch, PieceRefused


class DestinationOptions(TableOptions):
    """Options of the PostgreSQL destination."""

    url: SecretStr = Field(description="the database, as postgresql://user:password@host:port/name")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]


class Destination(SqlDestination[DestinationOptions], sdk.PreparingDestination[DestinationOptions]):
    """Writes records as rows: appended, or one row per key. Transactional.

    Exactly-once in an exactly-once pipeline: the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this database. At-least-once in any other, effectively
    once with `mode="upsert"`. The table may be named with its schema: `sales.orders`.

    A row that the table refuses is refused alone. Integers beyond 64 bits, decimals, dates, times and UUIDs
    are sent as text, which PostgreSQL reads as the type of the column; objects and lists as JSON.
    """

    names: ClassVar[NameRules] = NameRules(columns_max=1600, reserved=("pg_", "information_schema"), bytes_max=63)
    _copying: CopyEncoder | None = None

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[sdk.Dataset]:
        tables = [] if self.options.table is None else [self.options.table]
        return sdk.Dataset.tables(self.options.url.get_secret_value(), tables, port=5432, schema="public")

    def connect(self) -> PostgresDatabase:
        return PostgresDatabase.at(self.options.url.get_secret_value())

    def prepare(self, batch: Batch) -> dict[int, str]:
        if self._copying is None:
            self._copying = CopyEncoder(self.make_encoder())
        return self._copying.add(batch)

    def prepared(self) -> bytes:
        assert self._copying is not None, "something was prepared"
        return msgspec.msgpack.encode(self._copying.groups())

    def take(self, pieces: Sequence[bytes]) -> None:
        self.write_pieces(pieces)

    def show_piece(self, database: SqlDatabase, writing: TableWriter, piece: bytes) -> None:
        assert isinstance(database, PostgresDatabase)
        for group in msgspec.msgpack.decode(piece, type=list[CopyText]):
            try:
                copy_in(database, writing, group)
            except NotThisRow as error:
                raise PieceRefused(f"{group.shape.table} refuses one of {group.count} rows: {error}") from error
