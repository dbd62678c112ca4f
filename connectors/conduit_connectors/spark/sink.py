"""spark.Sink: appends to whatever Spark can write to, or gives each batch to a function."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from conduit_connectors.spark.buffered_destination import BufferedDestination
from conduit_connectors.spark.row_buffer import BufferArguments, BufferOptions, Load
from conduit_connectors.spark.rows import Fields, RowMaker, frame_of
from conduit_py.sdk import FatalError, KeptOrder
from conduit_py.sdk.spark import error_text, is_definition_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _returns_at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise ValueError("must be a plain function: it runs in a thread, where it may block")
    return function


class SinkOptions(BufferOptions):
    """Options of the sink."""

    table: str | None = Field(default=None, description="the table of Spark's catalog to append to")
    format: str | None = Field(default=None, description="or a format of Spark's, with `options`")
    options: dict[str, str] = Field(default={}, description="options of the format; `path` is one of them")
    function: Annotated[Callable[..., Any], AfterValidator(_returns_at_once)] | None = Field(
        default=None, description="or a function that is given each batch as a DataFrame and writes it"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum(value is not None for value in (self.table, self.format, self.function)) != 1:
            raise ValueError("give one of `table`, `format` and `function`")
        return self


class SinkArguments(BufferArguments, total=False):
    """SinkOptions as a caller writes them, for editors and type checkers."""

    table: str | None
    format: str | None
    options: Mapping[str, str]
    function: Callable[..., Any] | None


class Sink(BufferedDestination[SinkOptions]):
    """Appends batches to a table, a format of Spark's, or through a function.

    At-least-once: a batch whose job failed half-way is written again in full, after a restart or in
    halves, and what the failed job left behind stays. Rows for a table are made in the
    table's own types, so that what does not fit is refused. A batch that fails because of its
    values is halved until only the bad records are left, which are refused.
    """

    jobs_at_once = 1

    def __init__(self, **options: Unpack[SinkArguments]) -> None:
        super().__init__(**options)

    @property
    def order(self) -> KeptOrder:
        # A batch is written by several tasks of Spark, and what a reader sees of it is up to the format.
        return KeptOrder.NOTHING

    def _row_maker(self, session: "SparkSession") -> RowMaker:
        maker = super()._row_maker(session)
        if self.options.table is None or not isinstance(maker, Fields) or maker.schema is not None:
            return maker
        return Fields(_schema_of(session, self.options.table), self.options)

    def _stage(self, session: "SparkSession", load: Load, number: int) -> None:
        """A sink has no staging: `_publish` writes one load after the other."""

    def _publish(self, session: "SparkSession", load: Load, staged: None) -> None:
        frame = frame_of(session, load.rows)
        if self.options.function is not None:
            self.options.function(frame)
        elif self.options.table is not None:
            # SQL, because only there writing is the same for all kinds of tables.
            session.sql(f"INSERT INTO {self.options.table} BY NAME SELECT * FROM {{batch}}", batch=frame)
        else:
            assert self.options.format is not None
            frame.write.format(self.options.format).options(**self.options.options).mode("append").save()


def _schema_of(session: "SparkSession", table: str) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(session.table(table).schema, timezone="UTC")
    except PySparkException as error:
        if not is_definition_error(error):
            raise
        raise FatalError(
            f"table {table!r} cannot be appended to: {error_text(error)}", suggestion="create it, or correct `table`"
        ) from error
