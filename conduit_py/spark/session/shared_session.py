"""The Spark of this process: its options, and its session, shared by all connectors and stopped by the last."""

import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict

from pydantic import Field, model_validator

from conduit_py.errors import FatalError, TransientError
from conduit_py.sdk.plugin import Options
from conduit_py.spark.session import cluster
from conduit_py.spark.session.errors import error_text, is_over
from conduit_py.spark.session.java import require_java, safe_conf, site_conf, start_gateway, worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

CONF = {
    "spark.app.name": "conduit-py",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A speculative copy of a task writes the same rows a second time.
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    # Halves what a small batch costs: rows go to the executors as they are, not as part of the query.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""The defaults of our sessions."""

# A deep stack: Spark matches long error texts with regular expressions, which overflow the usual one.
_JAVA = f"-Xss8m -Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
_REMINDER_SECONDS = 5.0
_EXIT_SECONDS = 1.0


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


class SharedSession:
    """One session per process, counted: the first `acquire` starts it, the last `release` stops it.

    A session that the process had before, as notebooks do, is used as it is and never stopped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._asked: SparkOptions | None = None
        self._holders = 0
        self._ours = False
        self.starting: str | None = None
        """The address where Spark is starting, while it is."""

    def acquire(self, options: SparkOptions) -> "SparkSession":
        """The session. Blocks for seconds while it starts. Raises FatalError or TransientError when it cannot."""
        with self._lock:
            # A Java that was killed leaves an object on which every call fails for ever.
            if self._session is not None and is_over(self._session):
                _forget(self._session)
                self._session = self._asked = None
            if self._session is None:
                self.starting = options.where
                try:
                    # Under the lock, though it takes seconds: a process can have one session only.
                    self._session, self._ours = _start(options)
                finally:
                    self.starting = None
                self._asked = options
            else:
                self._agree(options)
            self._holders += 1
            return self._session

    def release(self) -> None:
        """Give the session back. Call it once for each `acquire` that returned."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._session is None:
                return
            session, ours = self._session, self._ours
            self._session = self._asked = None
            if is_over(session):
                _forget(session)
            elif ours:
                session.stop()
                _logger.info("Spark is stopped")

    def _agree(self, options: SparkOptions) -> None:
        assert self._asked is not None
        # Not by `where`: another token may be another user.
        if (options.remote, options.master) != (self._asked.remote, self._asked.master):
            raise FatalError(
                f"this process runs Spark on {self._asked.where}, so it cannot use {options.where} too",
                suggestion="give all spark connectors of a process the same `master` or `remote`",
            )
        other = {name for name, value in options.conf.items() if self._asked.conf.get(name) != value}
        if other:
            raise FatalError(
                f"Spark was started by another connector with other values of {', '.join(sorted(other))}",
                suggestion="give all spark connectors of a process the same `conf`",
            )


shared = SharedSession()


def _start(options: SparkOptions) -> "tuple[SparkSession, bool]":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        _logger.info("using the Spark session that this process already has")
        return SparkSession.builder.getOrCreate(), False
    began = time.monotonic()
    with _progress(f"starting Spark on {options.where}"):
        session = _connect(options) if options.remote else _start_driver(options)
    _logger.info("Spark %s is ready on %s after %.1f s", session.version, options.where, time.monotonic() - began)
    return session, True


def _forget(session: "SparkSession") -> None:
    """Clear what PySpark keeps of a session that has ended, so that another one can start."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    _logger.warning("Spark has ended by itself; it will be started again when it is needed")
    try:
        session.stop()
        ended = _java_exits()
    except (Py4JError, PySparkException, OSError):
        ended = True
    if ended:
        _forget_java()


def _forget_java() -> None:
    """Clear PySpark's connection to a Java that is gone. Otherwise PySpark would use it for ever."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _java_exits() -> bool:
    """Whether the Java process that this process started has ended, or is about to."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _connect(options: SparkOptions) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    assert options.remote is not None
    cluster.require_server(options.remote, options.where)
    builder = SparkSession.builder.remote(options.remote)
    # The others are settings of a driver, and that of the server is running already.
    ours = {name: value for name, value in CONF.items() if name.startswith("spark.sql.")}
    for name, value in (ours | options.conf).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except ImportError as error:
        raise FatalError(
            f"Spark Connect needs packages that are not installed: {error}",
            suggestion="pip install 'conduit-dataflow[spark-connect]'",
        ) from error
    except PySparkException as error:
        raise TransientError(
            f"no Spark Connect server answers at {options.where}: {error_text(error)}",
            suggestion="start one, or correct `remote`",
        ) from error


def _start_driver(options: SparkOptions) -> "SparkSession":
    """A session whose driver is a Java process of ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Checked first: PySpark's own error does not say what to install.
    require_java()
    cluster.require_master(options.master)
    site = site_conf()
    conf = CONF | safe_conf(options.master, site | options.conf) | options.conf
    # Otherwise workers run the `python3` of their PATH, which may be another version.
    python = (site | conf).get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
    conf["spark.driver.extraJavaOptions"] = f"{_JAVA} {conf.get('spark.driver.extraJavaOptions', '')}".strip()
    submission = None
    if options.master == cluster.MASTER:
        cluster.require_manager(conf)
        submission = cluster.Submission(options.start_seconds)
        conf["spark.yarn.tags"] = submission.tags(conf.get("spark.yarn.tags"))
    builder = SparkSession.builder.master(options.master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        with submission.watching() if submission else nullcontext(), worker_python(python):
            start_gateway(options.master, conf)
            session = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        if submission and (known := submission.explanation()):
            raise known from error
        if _java_exits():
            _forget_java()
            what = f"Java ended while Spark was starting on {options.master}: {error_text(error)}"
            raise TransientError(
                what, suggestion="check whether it was killed, and whether the machine has enough memory"
            ) from error
        if "stopped SparkContext" in str(error):
            # Spark gave up after more than a minute, and does not say why.
            what = f"what listens at {options.master} is not a Spark master, or it has another secret"
            advice = "start the cluster, correct `master`, or set `spark.authenticate.secret` in `conf` as its nodes do"
            raise FatalError(what, suggestion=advice) from error
        raise FatalError(
            f"Spark does not start on {options.master}: {error_text(error)}", suggestion="correct `master` or `conf`"
        ) from error
    try:
        _require_executor(session, options)
    except BaseException:
        session.stop()
        raise
    return session


def _require_executor(session: "SparkSession", options: SparkOptions) -> None:
    """Wait for an executor: without one the first job would wait for ever."""
    context = session.sparkContext
    alone = options.master.startswith("local") or context.getConf().get("spark.dynamicAllocation.enabled") == "true"
    deadline = time.monotonic() + options.start_seconds
    cores = "spark.executor.cores" if options.master == cluster.MASTER else "spark.cores.max"
    # The status includes the driver.
    while not alone and context._jsc.sc().getExecutorMemoryStatus().size() < 2:
        if context._jsc.sc().isStopped():
            raise TransientError(f"the cluster at {options.master} ended the application at once")
        if time.monotonic() > deadline:
            raise TransientError(
                f"{options.master} gave no executor within {options.start_seconds:g} s",
                suggestion="check that its workers are alive and have free cores and memory, "
                f"or ask for less with spark.executor.memory and {cores} in `conf`",
            )
        time.sleep(0.1)


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """Log the start of something, and a reminder every few seconds while it lasts."""
    done = threading.Event()

    def remind() -> None:
        began = time.monotonic()
        while not done.wait(_REMINDER_SECONDS):
            _logger.info("still %s, %.0f s so far", what, time.monotonic() - began)

    _logger.info("%s, which takes some seconds", what)
    thread = threading.Thread(target=remind, name="conduit-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
