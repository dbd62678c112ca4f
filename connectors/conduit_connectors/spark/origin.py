"""Origin: what a source reads, as a DataFrame: a query, a table, files or whatever else Spark has a format for."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from conduit_py.sdk import FatalError
from conduit_py.sdk.spark import SparkArguments, SparkOptions, error_text, is_definition_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader


class OriginOptions(SparkOptions):
    """Where the rows are."""

    query: str | None = Field(default=None, description="a SELECT in Spark's SQL")
    table: str | None = Field(default=None, description="or a table of Spark's catalog")
    format: str | None = Field(default=None, description='or a format of Spark\'s, such as "parquet" or "jdbc"')
    options: dict[str, str] = Field(default={}, description="options of the format")
    path: str | None = Field(default=None, description="the files of the format, a path or a URL")
    columns: str | None = Field(
        default=None, description='the columns of the format, as in SQL: "id BIGINT, name STRING"; None: it says itself'
    )
    function: Callable[..., Any] | None = Field(
        default=None, description="or a function that is given the session and returns a DataFrame"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if sum(value is not None for value in (self.query, self.table, self.format, self.function)) != 1:
            raise ValueError("give one of `query`, `table`, `format` and `function`")
        if (self.path is not None or self.options or self.columns is not None) and self.format is None:
            raise ValueError("`path`, `columns` and `options` go with a `format`")
        return self

    @property
    def name(self) -> str:
        """What is read, for messages and the metadata of records."""
        named = getattr(self.function, "__name__", "function") if self.function is not None else None
        return self.table or self.path or self.options.get("dbtable") or self.query or named or str(self.format)


class OriginArguments(SparkArguments, total=False):
    """OriginOptions as a caller writes them, for editors and type checkers."""

    query: str | None
    table: str | None
    format: str | None
    options: Mapping[str, str]
    path: str | None
    columns: str | None
    function: Callable[..., Any] | None


def frame_at(session: "SparkSession", origin: OriginOptions) -> "DataFrame":
    """The rows as a DataFrame. Spark reads only their schema here."""
    return _frame(session, session.read, origin)


def stream_at(session: "SparkSession", origin: OriginOptions) -> "DataFrame":
    """The rows, present and future, as a streaming DataFrame."""
    frame = _frame(session, session.readStream, origin)
    if not frame.isStreaming:
        raise FatalError(
            f"{origin.name} is not a stream",
            suggestion='give a `format`, or a function that returns session.readStream…, or use mode "snapshot"',
        )
    return frame


def _frame(session: "SparkSession", reader: "DataFrameReader | DataStreamReader", origin: OriginOptions) -> "DataFrame":
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    try:
        if origin.query is not None:
            return session.sql(origin.query)
        if origin.table is not None:
            return reader.table(origin.table)
        if origin.format is not None:
            return _of_format(reader, origin)
        assert origin.function is not None
        frame = origin.function(session)
    except PySparkException as error:
        if not is_definition_error(error):
            raise
        raise FatalError(
            f"{origin.name} cannot be read: {error_text(error)}", suggestion="correct what the source reads"
        ) from error
    if not isinstance(frame, DataFrame):
        raise FatalError(f"{origin.name} returned a {type(frame).__name__}, not a DataFrame")
    return frame


def _of_format(reader: "DataFrameReader | DataStreamReader", origin: OriginOptions) -> "DataFrame":
    assert origin.format is not None
    options = origin.options
    if origin.columns is not None:
        reader = reader.schema(origin.columns)
        if origin.format in ("json", "csv"):
            # By default Spark reads a value that does not fit its column as null.
            options = {"mode": "FAILFAST"} | options
    return reader.format(origin.format).options(**options).load(origin.path)
