"""How tests start Java: for processes that live for seconds, with the classes of Spark loaded and checked before."""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Only the first tier of compilation, and the serial collector."""
_MAPPED_AS_IT_IS = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""Java would change every address in the archive, so that each process has others: a tenth of a short one's CPU."""

_JOB = """
import tempfile
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
with tempfile.TemporaryDirectory() as folder:
    rows = session.range(10).mapInArrow(lambda batches: batches, "id long")
    rows.write.parquet(folder + "/rows")
    assert session.read.parquet(folder + "/rows").count() == 10
session.stop()
"""


def use_quick_java() -> None:
    """Start every Java from here on quickly, in processes of this one too."""
    os.environ |= quick_java()


def quick_java() -> dict[str, str]:
    """The variables of a process that starts Java quickly.

    Half of the CPU of a short Spark goes into loading its classes. An archive of them, made once for each environment,
    saves that. A Java that cannot use the archive ignores it.
    """
    options = f"{QUICK_JAVA} -XX:SharedArchiveFile={_class_archive()} {_MAPPED_AS_IT_IS} -Xlog:disable"
    return {"JDK_JAVA_OPTIONS": options}


def _class_archive() -> Path:
    printed = subprocess.run(["java", "-version"], check=True, capture_output=True, timeout=100).stderr
    # In the environment whose jars it is about: Java compares their paths.
    archive = Path(sys.prefix) / f"spark-{hashlib.blake2b(printed, digest_size=4).hexdigest()}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        # Several workers of pytest-xdist may be the first.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            options = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
            subprocess.run(
                [sys.executable, "-c", _JOB],
                env=os.environ | {"JDK_JAVA_OPTIONS": options, "PYSPARK_PYTHON": sys.executable},
                check=True,
                capture_output=True,
                timeout=600,
            )
    return archive
