"""The settings of a pipeline and its nodes, whatever the connectors, and the engine that a pipeline runs on."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from conduit_py import defaults
from conduit_py.backoff import Recovery, Retry
from conduit_py.schedule import Schedule, check_expression, check_zone
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.processor import Where
from conduit_py.sdk.template import condition_option

Id = Annotated[
    str, StringConstraints(min_length=1, max_length=defaults.PIPELINE_ID_LENGTH_MAX, pattern=f"^{defaults.ID_PATTERN}$")
]
NodeId = Annotated[
    str, StringConstraints(min_length=1, max_length=defaults.NODE_ID_LENGTH_MAX, pattern=f"^{defaults.ID_PATTERN}$")
]
ConditionText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
"""A condition that a user asks with, in CEL or as a template."""
Delivery: TypeAlias = Literal["at_least_once", "at_most_once", "exactly_once"]


def _answers_at_once(when: Callable[..., Any]) -> Callable[..., Any]:
    # The coroutine that an async function returns is always true, so no record would be filtered.
    if inspect.iscoroutinefunction(when):
        raise ValueError("must answer at once: write a plain function, not an async one")
    return when


def _condition(when: object) -> object:
    return condition_option(when) if isinstance(when, str) else when


When = Annotated[Callable[..., Any], BeforeValidator(_condition), AfterValidator(_answers_at_once)]


class RateLimit(Options):
    """How much a source may read, or a destination write, in a second, on average."""

    records_per_second: float | None = Field(default=None, gt=0, description="the most records in a second")
    bytes_per_second: float | None = Field(
        default=None, gt=0, description="about the most bytes in a second, estimated from some of the records"
    )
    burst: int | None = Field(
        default=None, ge=1, description="the most records at once after a pause; by default those of a second"
    )

    @model_validator(mode="after")
    def _limits_something(self) -> "RateLimit":
        if self.records_per_second is None and self.bytes_per_second is None:
            raise ValueError("records_per_second or bytes_per_second must be given")
        if self.burst is not None and self.records_per_second is None:
            raise ValueError("burst needs records_per_second")
        return self


class SourceSettings(Options):
    """The settings of a source, whatever its connector."""

    id: NodeId
    batch_size: int = Field(default=defaults.BATCH_SIZE, ge=1, description="the most records that travel together")
    window: int = Field(default=defaults.WINDOW, ge=1, description="the most records read and not yet settled")
    atomic: bool = Field(
        default=False,
        description="never commit half of a group, such as a transaction of a database; for exactly_once",
    )
    rate: RateLimit | None = None
    schedule: Annotated[str, AfterValidator(check_expression)] | None = Field(
        default=None, description='when to read it again, as cron has it: "0 3 * * *" is every day at 3:00'
    )
    timezone: Annotated[str, AfterValidator(check_zone)] | None = Field(
        default=None, description='of the schedule, such as "Europe/Berlin"; without it, UTC'
    )

    @model_validator(mode="after")
    def _zone_of_what(self) -> "SourceSettings":
        if self.timezone is not None and self.schedule is None:
            raise ValueError("timezone is that of a schedule, and there is none")
        return self

    @property
    def timetable(self) -> Schedule | None:
        """The schedule with its time zone."""
        return None if self.schedule is None else Schedule(self.schedule, self.timezone or "UTC")


class DestinationSettings(Options):
    """The settings of a destination, whatever its connector."""

    id: NodeId
    batch_size: int | None = Field(default=None, ge=1, description="the most records of one `write`")
    batch_bytes: int | None = Field(default=None, ge=1, description="about the most bytes of one `write`")
    batch_seconds: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="how long records wait for others, until a batch is full"
    )
    rate: RateLimit | None = None
    retry: Retry | None = None
    when: When | None = None


class ProcessorSettings(Options):
    """The settings of a processor."""

    id: NodeId
    workers: int = Field(
        default=1, ge=1, le=defaults.WORKERS_MAX, description="how many records are processed at once, order kept"
    )
    where: Where = Field(
        default="thread", description="where workers run: in threads of this process, or each in a process of its own"
    )
    batch_size: int | None = Field(default=None, ge=1, description="the most records that are processed together")
    batch_seconds: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="how long records wait for others, until a batch is full"
    )
    when: When | None = None
    retry: Retry | None = None
    state_cache_bytes: int = Field(
        default=defaults.STATE_CACHE_BYTES,
        ge=1,
        description="about how much of its state is in memory; the rest is read from the store",
    )

    @model_validator(mode="after")
    def _waits_for_what(self) -> "ProcessorSettings":
        if self.batch_size is not None and self.batch_seconds is None:
            raise ValueError("batch_size needs batch_seconds: how long records wait until there are so many")
        return self


class TransactionLimits(Options):
    """When a transaction of an exactly-once pipeline closes.

    It closes when the sources have no more records for now, but not before `min_seconds`. It closes at the latest
    after `max_seconds`, or with `max_records` or `max_bytes`. Larger transactions cost less per record, but
    readers of the destinations wait longer.
    """

    min_seconds: float = Field(default=0.0, ge=0, description="the shortest time that a transaction stays open")
    max_seconds: float = Field(default=1.0, gt=0, description="the longest time that a transaction stays open")
    max_records: int = Field(
        default=4096, ge=1, description="the most records in one transaction; half of the smallest window is the limit"
    )
    max_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1, description="about how many bytes of records one transaction may have"
    )

    @model_validator(mode="after")
    def _in_order(self) -> "TransactionLimits":
        if self.min_seconds > self.max_seconds:
            raise ValueError("min_seconds must not be above max_seconds")
        return self


class Retention(BaseModel):
    """When kept letters of a pipeline are deleted: once they are older than `age`, or above `count_max`.

    Without either they are kept until they are replayed or discarded. Letters that are queued for replay are never
    deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    age: timedelta | None = Field(default=None, gt=timedelta(0), description="since a letter was last refused")
    count_max: int | None = Field(default=None, ge=1, description="the oldest above this number go first")

    def since(self, now: float) -> float | None:
        """Return the time, in seconds since 1970, before which letters are too old."""
        return None if self.age is None else now - self.age.total_seconds()


class DeadLetterSettings(Options):
    """How many nacks stop the pipeline, and how long letters are kept."""

    window_size: int | None = Field(
        default=None,
        ge=0,
        description="how many of the latest outcomes count; 0 counts none; by default a run stops when more than 95 of "
        "the first 100 records of a source are refused",
    )
    window_nack_threshold: int = Field(default=0, ge=0, description="how many of those may be nacks")
    retention: Retention | None = None

    @model_validator(mode="after")
    def _can_trip(self) -> "DeadLetterSettings":
        if self.window_size and self.window_nack_threshold >= self.window_size:
            raise ValueError("window_nack_threshold must be below window_size, or it could never be exceeded")
        if self.window_nack_threshold and not self.window_size:
            raise ValueError("window_nack_threshold needs a window_size")
        return self


EngineName: TypeAlias = Literal["trio", "spark"]


class Spark(Options):
    """The engine that reads and processes records on the executors of Spark.

    What is not set here is taken from the `spark` connectors of the pipeline. Without those Spark runs on this machine.
    """

    master: str | None = Field(
        default=None, min_length=1, description='"local[2]", "spark://host:7077", "yarn" or "k8s://…"'
    )
    conf: dict[str, str] = Field(default={}, description="Spark's own settings, by name")
    start_seconds: float | None = Field(
        default=None, gt=0, description="how long the cluster may take to give an executor"
    )


Engine: TypeAlias = EngineName | Spark


def parse_engine(engine: Any) -> Engine:
    """Return the engine that a user named. Raises ValueError if it is not one."""
    if engine in ("trio", "spark") or isinstance(engine, Spark):
        chosen: Engine = engine
        return chosen
    raise ValueError('must be "trio", "spark" or Spark(…)')


class PipelineSettings(Options):
    """The settings of a pipeline as a whole."""

    id: Id
    description: str = Field(default="", max_length=8192)
    delivery: Delivery = "at_least_once"
    stop_seconds: float = Field(default=defaults.STOP_SECONDS, gt=0, description="how long a graceful stop may take")
    recovery: Recovery | None = None
    transaction: TransactionLimits | None = None
    # Any: for a union pydantic would report one problem for each member that does not match.
    engine: Annotated[Any, AfterValidator(parse_engine)] = "trio"


def spark_of(engine: Engine) -> Spark | None:
    """Return the Spark of an engine, or None for the engine of one machine."""
    if isinstance(engine, Spark):
        return engine
    return Spark() if engine == "spark" else None


def choose_engine(engine: Engine, name: EngineName | None, master: str | None) -> Engine:
    """Return the engine of a pipeline, with the engine or master that the command line chose in its place."""
    if name == "trio":
        return "trio"
    spark = spark_of(engine) or (Spark() if name == "spark" else None)
    if spark is None or master is None:
        return engine if spark is None else spark
    return spark.model_copy(update={"master": master})
