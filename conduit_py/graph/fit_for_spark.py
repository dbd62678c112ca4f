"""What cannot run on Spark, known before anything starts."""

from collections.abc import Iterator

from conduit_py.errors import Problem
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.shared_source import SharedSource


def unfit(pipeline: Pipeline) -> Iterator[Problem]:
    """Everything in a pipeline that cannot run on Spark, each with its reason."""
    for source in pipeline.sources:
        if isinstance(source.connector, SharedSource):
            what = "shares its work with other processes by leases, which the tasks of Spark do not keep"
            yield Problem(f"sources.{source.id}", what, 'run it on the engine "trio"', *(source.place or (None, None)))
