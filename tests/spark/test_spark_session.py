"""What is wrong with Spark is reported before anything waits for it, and one session serves all connectors."""

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from warm_python import run_warm
from warm_workers import DRIVER_MODULES

from conduit_py.errors import FatalError, TransientError
from conduit_py.spark.session.errors import failure_advice, spark_errors
from conduit_py.spark.session.shared_session import SharedSession, SparkOptions, shared

OPEN = """
from conduit_connectors.spark import Sink
sink = Sink(format="noop", master="local[1]").fresh()
try:
    sink.open()
except Exception as error:
    print(type(error).__name__, error, error.suggestion)
"""


def in_a_process(code: str, **environment: str) -> str:
    """What a program prints, in a process of its own, where no Spark has been started yet."""
    ran = run_warm([sys.executable, "-c", code], env=os.environ | environment, preloaded=DRIVER_MODULES)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def in_a_cold_process(code: str) -> str:
    """What a program about imports prints, in a process that has imported nothing of Spark yet."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_without_java_there_is_advice_what_to_install(tmp_path: Path) -> None:
    said = in_a_process(OPEN, PATH=str(tmp_path), JAVA_HOME="")

    assert said.startswith("FatalError Spark runs on Java, and there is none on this machine")
    assert "apt-get install openjdk-17-jre-headless" in said


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)

    said = in_a_process(OPEN, JAVA_HOME=str(tmp_path))

    assert said.startswith(f"FatalError Spark needs Java 17 or newer, and {java} is version 8")


def test_a_wrong_java_home_is_named(tmp_path: Path) -> None:
    said = in_a_process(OPEN, JAVA_HOME=str(tmp_path))

    assert said.startswith(f"FatalError JAVA_HOME is {tmp_path}, but there is no {tmp_path}/bin/java")


def test_without_pyspark_the_import_says_what_to_install() -> None:
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
try:
    import conduit_connectors.spark
except ImportError as error:
    print(error)
"""
    expected = "Spark needs pyspark, not installed here: pip install 'conduit-dataflow[spark]'\n"
    assert in_a_cold_process(code) == expected


def test_pyspark_is_imported_only_when_it_is_used() -> None:
    code = "import sys, conduit_connectors.spark; print('pyspark' in sys.modules)"

    assert in_a_cold_process(code) == "False\n"


def test_a_master_that_does_not_answer_is_reported_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        said = in_a_process(OPEN.replace("local[1]", f"spark://{address}"))

    assert said.startswith(f"TransientError no Spark master answers ({address}: Connection refused)")


def test_a_master_without_a_port_is_reported() -> None:
    said = in_a_process(OPEN.replace("local[1]", "spark://somewhere"))

    assert said.startswith("FatalError master 'spark://somewhere' has no port")


def test_another_session_starts_when_java_was_killed() -> None:
    """As when it runs out of memory: what was under way fails, and the next run has a Spark of its own."""
    code = """
import os, signal, trio
from conduit_connectors.spark import Source
numbers = Source(mode="keyed", key=["id"], query="SELECT id FROM range(3)", master="local[1]")
source = numbers.fresh()
source.open(None)
from pyspark import SparkContext
os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
try:
    source.read(3)
except Exception as error:
    print(type(error).__name__)
trio.run(source.teardown)
source = numbers.fresh()
source.open(None)
print([record.payload["id"] for record in source.read(3)])
trio.run(source.teardown)
"""
    assert in_a_process(code) == "TransientError\n[0, 1, 2]\n"


def test_connectors_must_agree_on_their_spark(spark: SparkSession, spark_options: dict[str, Any]) -> None:
    with pytest.raises(FatalError, match=r"this process runs Spark on spark://.*, so it cannot use local\[7\] too"):
        shared.acquire(SparkOptions(master="local[7]"))
    with pytest.raises(FatalError, match=r"with other values of spark\.x"):
        shared.acquire(SparkOptions(master=spark_options["master"], conf={"spark.x": "1"}))


def test_a_session_is_shared(spark: SparkSession, spark_options: dict[str, Any]) -> None:
    assert shared.acquire(SparkOptions(**spark_options)) is spark
    shared.release()

    assert spark.range(3).count() == 3


def test_a_session_of_the_users_own_is_used_and_left_alone(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    another = SharedSession()

    assert another.acquire(SparkOptions(master="local[7]")) is spark
    another.release()
    assert spark.range(3).count() == 3
    assert "using the Spark session that this process already has" in caplog.text


class _JavaError(Exception):
    """An error of Java, as py4j has it: its text is in the process of Java, which has ended."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_whose_text_ended_with_java_is_reported_with_what_to_do() -> None:
    with pytest.raises(TransientError) as caught, failure_advice(), spark_errors("a job of Spark"):
        raise _JavaError

    assert caught.value.message.startswith("a job of Spark failed: Spark has ended")
    assert caught.value.suggestion is not None
    assert "spark.driver.memory" in caught.value.suggestion
