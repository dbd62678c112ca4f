"""SparkOptions: which Spark to use. All connectors of a process share it."""

import re
from collections.abc import Mapping
from typing import Self, TypedDict

from pydantic import Field, model_validator

from conduit_py.sdk.plugin import Options


class SparkOptions(Options):
    """Which Spark to use. All spark connectors of one process share one session, so they must agree."""

    master: str = Field(
        default="local[*]", min_length=1, description='"local[2]", "spark://host:7077", "yarn" or "k8s://…"'
    )
    remote: str | None = Field(
        default=None, pattern=r"^sc://", description='a Spark Connect server, "sc://host:15002", in place of `master`'
    )
    conf: dict[str, str] = Field(default={}, description="Spark's own settings, by name")
    start_seconds: float = Field(default=120.0, gt=0, description="how long the cluster may take to give an executor")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.remote is not None and "master" in self.model_fields_set:
            raise ValueError("give `master` or `remote`, not both")
        return self

    @property
    def where(self) -> str:
        """The address of the Spark, for messages: without the token and the user of a Spark Connect server."""
        if self.remote is None:
            return self.master
        scheme, _, rest = self.remote.partition("://")
        return f"{scheme}://{re.split('[/;?]', rest, maxsplit=1)[0].rpartition('@')[2]}"


class SparkArguments(TypedDict, total=False):
    """SparkOptions as a caller writes them, for editors and type checkers."""

    master: str
    remote: str | None
    conf: Mapping[str, str]
    start_seconds: float
