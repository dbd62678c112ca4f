"""What Spark's errors mean: in one line for people, and whether a record, the cluster or Java is to blame."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATA_STATES = re.compile(r"SQLSTATE: ?(?:22|23)\w{3}")
"""Classes 22 (data exception) and 23 (constraint violation) of SQL's states."""
_TEXT_MAX = 500


def explain(error: BaseException) -> str:
    """The first line of what Spark says that is not a Java stack trace."""
    cause = _innermost(error)
    lines = (line.strip() for line in cause.splitlines())
    text = next((line for line in lines if line and not line.startswith(("at ", "== ", "JVM stacktrace"))), "")
    return text[:_TEXT_MAX] or type(error).__name__


def blames_data(error: BaseException) -> bool:
    """Whether a job failed because of the values it was given, so that it would without some of them succeed."""
    return bool(_DATA_STATES.search(str(error)))


def blames_definition(error: BaseException) -> bool:
    """Whether Spark did not even begin, because what it was asked to do makes no sense."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException

    return isinstance(error, AnalysisException | IllegalArgumentException | ParseException)


def cancelled(error: BaseException) -> bool:
    """Whether a job failed because it was cancelled."""
    return "SPARK_JOB_CANCELLED" in str(error) or "OPERATION_CANCELED" in str(error)


def lost(session: "SparkSession") -> bool:
    """Whether the session is of no use any more: stopped by somebody, or its Java process gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not hasattr(session, "_jsparkSession"):
        return bool(session.is_stopped)  # type: ignore[attr-defined]
    try:
        context = session.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, PySparkException, OSError):
        return True


def _innermost(error: BaseException) -> str:
    """What the deepest Java cause says: those around it say no more than that a job was aborted."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error)
    try:
        text = str(java.getMessage() or java.toString())
        for _ in range(10):
            java = java.getCause()
            if java is None:
                break
            text = str(java.getMessage() or java.toString())
    except Exception:  # a border: the Java process may be the very thing that failed
        return str(error)
    return text
