"""The MySQL destination: writes rows into tables of MariaDB."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Required, Unpack

from pydantic import Field, SecretStr

from conduit_connectors.mysql.database import MySqlDatabase
from conduit_connectors.sql.destination import SqlDestination
from conduit_connectors.sql.row import NameRules, RowEncoder, TableArguments, TableOptions
from conduit_py import sdk
from conduit_py.sdk import RecordRefused

_OWN_DATABASES = frozenset({"mysql", "sys", "information_schema", "performance_schema"})


class DestinationOptions(TableOptions):
    """Options of the MySQL destination."""

    url: SecretStr = Field(description="the database, as mysql://user:password@host:port/name")


class DestinationArguments(TableArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]


class Destination(SqlDestination[DestinationOptions]):
    """Writes records as rows of MariaDB: appended, or one row per key. Transactional.

    Exactly-once in an exactly-once pipeline: the rows and the pipeline's checkpoint, in the table
    `conduit_checkpoint`, are one transaction of this server. At-least-once in any other, effectively
    once with `mode="upsert"`. The table may be named with its database: `sales.orders`. It must be of an engine with
    transactions, such as InnoDB. A missing table is created before the transaction, not as a part of it.

    A row that the table refuses is refused alone, and so is a value that MariaDB would cut or round. Times with a
    zone are stored in UTC; decimals are text in tables that it creates, objects and lists are JSON.
    """

    names: ClassVar[NameRules] = NameRules(columns_max=1017, reserved=(), ignores_case=True)
    finite: ClassVar[bool] = True

    def __init__(self, **options: Unpack[DestinationArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> Sequence[sdk.Dataset]:
        tables = [] if self.options.table is None else [self.options.table]
        return sdk.Dataset.tables(self.options.url.get_secret_value(), tables, port=3306)

    def connect(self) -> MySqlDatabase:
        return MySqlDatabase.at(self.options.url.get_secret_value())

    @classmethod
    def encoder_for(cls, options: TableOptions) -> RowEncoder:
        return _MariaRows(options, cls.names, int_max=cls.int_max, finite=cls.finite)


class _MariaRows(RowEncoder):
    """Rows in the words of MariaDB, which has no times with a zone and no names of units."""

    def _row(self, record: Any) -> Any:
        row = super()._row(record)
        if row.table.lower().partition(".")[0] in _OWN_DATABASES and "." in row.table:
            raise RecordRefused(f"names the table {row.table!r}, which belongs to the database")
        return row

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, datetime):
            return (value if value.tzinfo is None else value.astimezone(UTC)).replace(tzinfo=None).isoformat(" ")
        if isinstance(value, timedelta):
            return _time_text(name, value)
        return super()._plain(name, value)


def _time_text(name: str, value: timedelta) -> str:
    micro = abs(value) // timedelta(microseconds=1)
    seconds, micro = divmod(micro, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours > 838:
        raise RecordRefused(f"{name!r} is {value}, and a time of MariaDB has at most 838 hours")
    return f"{'-' if value < timedelta() else ''}{hours:02}:{minutes:02}:{seconds:02}.{micro:06}"
