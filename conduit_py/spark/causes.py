"""Causes: what is behind a job of Spark that failed for good, mostly want of memory, and what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from conduit_py.errors import RunError


@contextmanager
def explained() -> Iterator[None]:
    """Say of the failures that are mostly about memory what they are: Spark itself tells of broken connections."""
    try:
        yield
    except RunError as error:
        said = f"{error.message} {error.__cause__}"
        cause = next((each for each in CAUSES if any(sign in said for sign in each.signs)), None)
        if cause is None or error.suggestion is not None:
            raise
        raise type(error)(f"a job of Spark failed: {cause.what}", suggestion=cause.advice) from error.__cause__


class Cause(NamedTuple):
    """What is behind a job that failed for good, known by what Spark says, and what to do about it."""

    signs: tuple[str, ...]
    what: str
    advice: str


CAUSES = (
    Cause(
        ("spark.driver.maxResultSize",),
        "more would come back than the driver allows",
        "raise spark.driver.maxResultSize and spark.driver.memory in `conf`, or have processors make smaller records",
    ),
    Cause(
        ("Python worker exited unexpectedly",),
        "a Python worker was killed or crashed, each time it was tried",
        "was it killed for want of memory? leave more to Python with spark.executor.memoryOverhead and less to Java, "
        "give an executor fewer cores, or have processors hold less",
    ),
    Cause(
        ("ExecutorLostFailure",),
        "an executor was lost, each time it was tried",
        "was it killed for want of memory? raise spark.executor.memory and spark.executor.memoryOverhead in `conf`",
    ),
    Cause(
        (
            "SparkContext was shut down", "Answer from Java side is empty", "Error while sending or receiving",
            "Connection refused", "Connection reset",
        ),
        "Spark has ended, as it does when it is out of memory or killed",
        "see what Java said, and give it more with spark.driver.memory in `conf`",
    ),
)  # fmt: skip
