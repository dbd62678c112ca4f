"""Translates errors of Spark into ours: one line for people, and whether a record, the cluster or Java caused them."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from conduit_py.errors import FatalError, RecordRefused, RunError, TransientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_DATA_STATES = re.compile(r"SQLSTATE: ?(?:22|23)\w{3}")
"""Classes 22 (data exception) and 23 (constraint violation) of SQL's states."""
_DEFINITION_STATES = re.compile(r"SQLSTATE: ?42\w{3}")
"""Class 42: syntax errors, things that do not exist, and access that is not allowed."""
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\]")
_GENERAL = ("[TASK_WRITE_FAILED]", "[FAILED_JDBC.", "[FAILED_READ_FILE", "[INTERNAL_ERROR]")
"""Conditions that mean only that something failed. Their cause is more specific."""
_TEXT_MAX = 500
_EXITS_MEMORY = (3, 52)
"""Exit codes of a process that ran out of memory: of Java, if configured so, and of Spark."""
_EXIT_SECONDS = 3.0
_CAUSES_MAX = 10


class JobCancelled(Exception):
    """The job group was cancelled or closed, so it starts no more jobs."""


class BadRows(Exception):
    """Some of the rows made a job fail. Without them it would succeed."""


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Raise whatever goes wrong in the block as BadRows, FatalError or TransientError, by what caused it."""
    try:
        yield
    except (FatalError, TransientError, BadRows):
        raise
    except RecordRefused as error:
        raise BadRows(error.message) from error
    except Exception as error:  # a plugin boundary: Spark, its sink, or the user's function
        if isinstance(error, JobCancelled) or _is_cancellation(error):
            raise TransientError(f"{what} was cancelled") from error
        code = _exit_code() if _cut_off(error) else None
        if code in _EXITS_MEMORY or "java.lang.OutOfMemoryError" in _text(error):
            # Fatal: the next attempt would need as much memory.
            advice = "raise spark.driver.memory and spark.executor.memory in `conf`, or give it less at once"
            raise FatalError(f"{what} failed: Java is out of memory: {error_text(error)}", suggestion=advice) from error
        if code is not None:
            raise TransientError(f"{what} failed: Java has ended, with the code {code}") from error
        if any(state.startswith("28") for _, state in _causes(error)):
            # Class 28: invalid authorization. Fatal: tried again for ever, a wrong password can lock the account.
            advice = "check the user and the password in the options of the connector"
            raise FatalError(f"{what} failed: {error_text(error)}", suggestion=advice) from error
        if _blames_data(error):
            raise BadRows(error_text(error)) from error
        if is_definition_error(error):
            advice = "correct the options of the connector"
            raise FatalError(f"{what} failed: {error_text(error)}", suggestion=advice) from error
        raise TransientError(f"{what} failed: {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    """The most specific line of an error of Spark, without the stack trace of Java."""
    causes = _causes(error)
    from_database = [text for text, state in causes if state]
    named = [text for text, _ in causes if _CONDITION.match(text) and not text.startswith(_GENERAL)]
    messages = from_database or named or [text for text, _ in causes]
    lines = (line.strip() for line in messages[-1].splitlines())
    text = next((line for line in lines if line and not line.startswith(("at ", "== ", "JVM stacktrace"))), "")
    return text[:_TEXT_MAX] or type(error).__name__


def _blames_data(error: BaseException) -> bool:
    """Whether a job failed because of values in its rows, so that it would succeed without some of them."""
    return bool(_DATA_STATES.search(_text(error))) or any(state[:2] in ("22", "23") for _, state in _causes(error))


def is_definition_error(error: BaseException) -> bool:
    """Whether Spark refused the query itself: bad syntax, unknown tables or columns, wrong options."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException

    if any(state.startswith("08") for _, state in _causes(error)):
        return False  # A connection that fails, which Spark finds out while it analyses.
    meant = isinstance(error, AnalysisException | IllegalArgumentException | ParseException)
    return meant or bool(_DEFINITION_STATES.search(_text(error)))


def _cut_off(error: BaseException) -> bool:
    """Whether the connection to Java is broken."""
    from py4j.protocol import Py4JNetworkError

    try:
        str(error)
    except Exception as gone:  # a boundary: the text of an error of Java is in Java, which may have ended since
        error = gone
    return isinstance(error, ConnectionError | Py4JNetworkError)


def _text(error: BaseException) -> str:
    """The text of an error; without a connection to Java, where the text of some errors is, why there is none."""
    try:
        return str(error)
    except Exception as gone:  # the same boundary as in `_cut_off`
        return f"{type(error).__name__}, which Java cannot describe any more: {gone}"


def _exit_code() -> int | None:
    """The exit code of the driver's Java, if it has ended. It gets a moment: its connection breaks first."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return int(process.wait(_EXIT_SECONDS)) if process is not None else None
    except subprocess.TimeoutExpired:
        return None


def _is_cancellation(error: BaseException) -> bool:
    """Whether a job failed because it was cancelled."""
    text = _text(error)
    return "SPARK_JOB_CANCELLED" in text or "OPERATION_CANCELED" in text


def is_over(session: "SparkSession") -> bool:
    """Whether the session has ended: it was stopped, or its Java process is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not hasattr(session, "_jsparkSession"):
        return bool(session.is_stopped)  # type: ignore[attr-defined]
    try:
        context = session.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, PySparkException, OSError):
        return True


def _causes(error: BaseException) -> list[tuple[str, str]]:
    """The messages of an error and its causes in Java, the outermost first, each with its SQL state if it has one."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    causes: list[tuple[str, str]] = []
    try:
        # Bounded, because each step is a call into Java, and causes may refer to each other.
        while java is not None and len(causes) < _CAUSES_MAX:
            causes.append((str(java.getMessage() or java.toString()), _state(java)))
            java = java.getCause()
    except Exception:  # a boundary: the Java process may be the very thing that failed
        return causes or [(_text(error), "")]
    return causes or [(_text(error), "")]


def _state(java: Any) -> str:
    name = java.getClass().getName()
    return str(java.getSQLState() or "") if name.endswith(("SQLException", "BatchUpdateException")) else ""


@contextmanager
def failure_advice() -> Iterator[None]:
    """Explain failures that mostly come from memory: Spark itself reports them as broken connections."""
    try:
        yield
    except RunError as error:
        text = error.message if error.__cause__ is None else f"{error.message} {_text(error.__cause__)}"
        cause = next((each for each in KNOWN_FAILURES if any(sign in text for sign in each.signs)), None)
        if cause is None or error.suggestion is not None:
            raise
        raise type(error)(f"a job of Spark failed: {cause.what}", suggestion=cause.advice) from error.__cause__


class KnownFailure(NamedTuple):
    """A failure recognised by the text of Spark's error: what happened, and what to do about it."""

    signs: tuple[str, ...]
    what: str
    advice: str


KNOWN_FAILURES = (
    KnownFailure(
        ("spark.driver.maxResultSize",),
        "the results are larger than the driver allows",
        "raise spark.driver.maxResultSize and spark.driver.memory in `conf`, or have processors make smaller records",
    ),
    KnownFailure(
        ("Python worker exited unexpectedly",),
        "a Python worker was killed or crashed, each time it was tried",
        "it may have run out of memory: give Python more with spark.executor.memoryOverhead and Java less, "
        "give an executor fewer cores, or have processors hold less at once",
    ),
    KnownFailure(
        ("ExecutorLostFailure",),
        "an executor was lost, each time it was tried",
        "it may have run out of memory: raise spark.executor.memory and spark.executor.memoryOverhead in `conf`",
    ),
    KnownFailure(
        (
            "SparkContext was shut down", "Answer from Java side is empty", "Error while sending or receiving",
            "Connection refused", "Connection reset",
        ),
        "Spark has ended, which happens when it runs out of memory or is killed",
        "see the output of Java, and give it more memory with spark.driver.memory in `conf`",
    ),
)  # fmt: skip
