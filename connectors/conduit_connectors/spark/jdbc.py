"""spark.Jdbc: rows of a database's table, written in parallel to a staging table and published in one transaction."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Required, Self, Unpack

import msgspec
from pydantic import Field, model_validator

from conduit_connectors.spark.buffered_destination import BufferedDestination
from conduit_connectors.spark.changes import ChangeRows, with_order
from conduit_connectors.spark.database import JdbcDatabase
from conduit_connectors.spark.row_buffer import BufferArguments, BufferOptions, Load
from conduit_connectors.spark.rows import Fields, RowMaker, frame_of
from conduit_py import sdk
from conduit_py.sdk import Batch, FatalError, TransientError
from conduit_py.sdk.spark import BadRows, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JdbcOptions(BufferOptions):
    """Options of the JDBC destination."""

    url: str = Field(pattern=r"^jdbc:", description='the database, "jdbc:postgresql://host/database"')
    table: str = Field(min_length=1, description="the table to add rows to, which must exist")
    driver: str = Field(default="org.postgresql.Driver", description="the class of the JDBC driver")
    options: dict[str, str] = Field(default={}, description='options of the driver, such as "user" and "password"')
    mode: Literal["append", "upsert"] = Field(
        default="append", description="add every record, or have one row per key: add, update or delete it"
    )
    key: list[str] = Field(
        default=[], description='"upsert": the columns of the key, which must be unique in the table'
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.remote is not None:
            raise ValueError("staging needs a Spark driver in this process: give `master` in place of `remote`")
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError('`key` and mode "upsert" go together')
        if self.mode == "upsert" and self.payload == "envelope":
            raise ValueError('mode "upsert" writes columns: payload "envelope" has none that could be a key')
        if self.mode == "upsert" and not self.url.startswith("jdbc:postgresql:"):
            raise ValueError('mode "upsert" is known to work with PostgreSQL only')
        return self


class JdbcArguments(BufferArguments, total=False):
    """JdbcOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    table: Required[str]
    driver: str
    options: Mapping[str, str]
    mode: Literal["append", "upsert"]
    key: Sequence[str]


class StagedTables(msgspec.Struct, frozen=True):
    """What an exactly-once transaction makes visible: staging tables, in order, and the columns to copy."""

    names: list[str]
    columns: list[str]
    key: list[str] = []
    """The key columns for upserts; without any, rows are added."""


class Jdbc(BufferedDestination[JdbcOptions], sdk.StagedDestination[JdbcOptions]):
    """Adds rows to a table, each batch whole or not at all, through a staging table and a ledger.

    Exactly-once in an exactly-once pipeline (staged). In an at-least-once one a batch that was
    committed and not yet acked when the process was killed is added again; with mode "upsert" that changes nothing.
    The table `conduit_ledger` beside the target records which stages were applied.
    """

    _fence = -1
    """The fence of an exactly-once pipeline; -1 in any other."""
    _owner: str | None = None

    def __init__(self, **options: Unpack[JdbcArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        kind, _, rest = re.split("[?;]", self.options.url)[0].removeprefix("jdbc:").partition("://")
        schema, port = ("public", 5432) if kind == "postgresql" else ("", 3306)
        return sdk.Dataset.tables(f"{kind}://{rest}", [self.options.table], port=port, schema=schema)

    @property
    def claims(self) -> str:
        # Passwords are before an "@", or after a "?" or a ";".
        place = re.split("[?;]", self.options.url)[0]
        kind, slashes, rest = place.partition("//")
        return f"the table {self.options.table} of {kind}{slashes}{rest.rpartition('@')[2]}"

    def begin(self, owner: str, fence: int, intents: Sequence[bytes]) -> None:
        for intent in intents:
            self.apply(intent)
        with spark_errors("discarding stages"), self._job_group.running():
            self._database.discard(f"{owner}/{self.options.table}", fence)
        self._owner, self._fence = f"{owner}/{self.options.table}", fence

    def write(self, batch: Batch) -> dict[int, str] | None:
        if self._owner is None:
            self._take_over(f"{batch.span.pipeline}/{self.options.table}")
        refused = super().write(batch)
        if self._fence >= 0 and self._buffer.full:
            self._stage_buffer()
        return refused

    def stage(self) -> bytes | None:
        stages = self._collect_stages()
        return msgspec.json.encode(StagedTables(stages, self._columns, self.options.key)) if stages else None

    def apply(self, intent: bytes) -> None:
        stages = msgspec.json.decode(intent, type=StagedTables)
        try:
            with spark_errors("applying a stage"), self._job_group.running():
                for name in stages.names:
                    self._database.apply(name, stages.columns, stages.key)
        except BadRows as bad:
            raise FatalError(
                f"{self.options.table} does not take rows that are already committed: {bad}",
                suggestion="remove the constraint or what is in the way, and start again",
            ) from bad

    def _row_maker(self, session: "SparkSession") -> RowMaker:
        options = self.options
        self._database = JdbcDatabase(session, options.url, options.driver, options.table, options.options)
        maker = super()._row_maker(session)
        if isinstance(maker, Fields) and maker.schema is None:
            from pyspark.sql.pandas.types import to_arrow_schema

            there = session.read.format("jdbc").options(**self._spark_options(options.table)).load()
            maker = Fields(to_arrow_schema(there.schema, timezone="UTC"), options)
        return ChangeRows(self._check_key(maker), options.key) if options.key else maker

    def _check_key(self, maker: RowMaker) -> Fields:
        """Check that the key is unique: otherwise the database could not tell which row to update."""
        assert isinstance(maker, Fields)
        assert maker.schema is not None
        unknown = [name for name in self.options.key if name not in maker.schema.names]
        if unknown or not self._database.is_unique(self.options.key):
            named = f"there is no column {unknown[0]!r}" if unknown else f"{', '.join(self.options.key)} is not unique"
            raise FatalError(
                f"{self.options.table} cannot be updated by its key: {named}",
                suggestion="correct `key`, or add a PRIMARY KEY or UNIQUE constraint of just these columns",
            )
        return maker

    def _prepare(self, session: "SparkSession") -> None:
        self._database.prepare()

    def _publish(self, session: "SparkSession", load: Load, stage: str) -> None:
        try:
            self._database.apply(stage, self._columns, self.options.key)
        except Exception:
            self._database.forget(stage)
            raise

    def _take_over(self, owner: str) -> None:
        """Outside of exactly-once pipelines: remove what a killed run of this pipeline left behind."""
        with spark_errors("discarding stages"), self._job_group.running():
            self._database.discard(owner, -1)
        self._owner = owner

    def _stage(self, session: "SparkSession", load: Load, number: int) -> str:
        """Write rows to a new staging table and count them: a task lost after its commit has written its rows twice."""
        assert self._owner is not None
        stage = self._database.stage(self._owner, self._fence, number, self.options.key)
        try:
            frame = frame_of(session, with_order(load.rows) if self.options.key else load.rows)
            frame.write.format("jdbc").options(**self._spark_options(stage)).mode("append").save()
            written = self._database.count(stage)
            if written != len(load):
                raise TransientError(f"{written} rows were written to {stage} for {len(load)} records")
        except Exception:
            self._database.forget(stage)
            raise
        return stage

    def _spark_options(self, table: str) -> dict[str, str]:
        return self.options.options | {"url": self.options.url, "driver": self.options.driver, "dbtable": table}

    @property
    def _columns(self) -> list[str]:
        assert self._maker.schema is not None
        names: list[Any] = self._maker.schema.names
        return names
