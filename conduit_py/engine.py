"""Engine: what a pipeline runs on: this process, or the executors of a Spark."""

from typing import Any, Literal, TypeAlias

from pydantic import Field

from conduit_py.sdk.options import Options


class Spark(Options):
    """The engine whose records are read and processed by the executors of a Spark.

    What is not said here is as the `spark` connectors of the pipeline say, or else Spark runs on this machine.
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
    """The engine as it was written down; ValueError when it is none."""
    if engine in ("trio", "spark") or isinstance(engine, Spark):
        known: Engine = engine
        return known
    raise ValueError('must be "trio", "spark" or Spark(…)')


def spark_of(engine: Engine) -> Spark | None:
    """The Spark that is meant, or None for the engine of one machine."""
    if isinstance(engine, Spark):
        return engine
    return Spark() if engine == "spark" else None


def choose_engine(engine: Engine, name: EngineName | None, master: str | None) -> Engine:
    """The engine that a pipeline names, unless somebody has chosen another, or another Spark for it."""
    if name == "trio":
        return "trio"
    spark = spark_of(engine) or (Spark() if name == "spark" else None)
    if spark is None or master is None:
        return engine if spark is None else spark
    return spark.model_copy(update={"master": master})
