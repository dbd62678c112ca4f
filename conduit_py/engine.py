"""Engine: what a pipeline runs on: this process, or the executors of a Spark cluster."""

from typing import Any, Literal, TypeAlias

from pydantic import Field

from conduit_py.sdk.options import Options


class Spark(Options):
    """The engine that has the executors of Spark read and process the records.

    What is not set here is taken from the `spark` connectors of the pipeline; otherwise Spark runs on this machine.
    """

    master: str | None = Field(
        default=None, min_length=1, description='"local[2]", "spark://host:7077", "yarn" or "k8s://…"'
    )
    conf: dict[str, str] = Field(default={}, description="Spark's own settings, by name")
    start_seconds: float | None = Field(
        default=None, gt=0, description="how long the cluster may take to give an executor"
    )


EngineName: TypeAlias = Literal["trio", "spark"]
Engine: TypeAlias = EngineName | Spark


def parse_engine(engine: Any) -> Engine:
    """The engine as given by the user. Raises ValueError when it is none."""
    if engine in ("trio", "spark") or isinstance(engine, Spark):
        known: Engine = engine
        return known
    raise ValueError('must be "trio", "spark" or Spark(…)')


def spark_of(engine: Engine) -> Spark | None:
    """The Spark of an engine, or None for the engine of one machine."""
    if isinstance(engine, Spark):
        return engine
    return Spark() if engine == "spark" else None


def choose_engine(engine: Engine, name: EngineName | None, master: str | None) -> Engine:
    """The engine of a pipeline, unless the command line chooses another one, or another Spark for it."""
    if name == "trio":
        return "trio"
    spark = spark_of(engine) or (Spark() if name == "spark" else None)
    if spark is None or master is None:
        return engine if spark is None else spark
    return spark.model_copy(update={"master": master})
