"""Warm Python workers of Spark: forks of a daemon that has imported what tasks use.

Spark forks a Python worker for each task that runs beside others, and a new one after each that failed. Its own daemon
imports nothing before that, so every worker imports PySpark, Arrow and this package again: seconds of CPU each time.
Everything else is as Spark does it: this program is `pyspark.daemon`, with more imported.
"""

import gc
import importlib
import os
import sys
from pathlib import Path

DRIVER_MODULES = ("conduit_connectors.spark", "conduit_py.spark.engine.supervisor", "pyspark.sql")
"""What a driver of a test imports: for `warm_python`."""
_PRELOADED = (
    "conduit_connectors.file",
    "conduit_connectors.generator",
    "conduit_connectors.journal",
    "conduit_py.spark.datasource.data_source",
    "conduit_py.spark.engine.task",
    # Not used by a task, but Arrow looks for it when it makes its first array.
    "pandas",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.worker.utils",
    "pyspark.worker",
)
_PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then shift 2; exec '{python}' '{daemon}' "$@"; fi
exec '{python}' "$@"
"""


def use_warm_workers() -> None:
    """Let every Spark that is started from here on, in processes of this one too, have warm workers."""
    os.environ |= warm_workers()


def warm_workers() -> dict[str, str]:
    """The variables of a process whose Spark has warm workers."""
    program = Path(sys.prefix) / "bin" / f"warm-workers-python{sys.version_info.minor}"
    partial = program.with_suffix(f".{os.getpid()}")
    partial.write_text(_PYTHON.format(python=sys.executable, daemon=__file__))
    partial.chmod(0o755)
    # Several workers of pytest-xdist write the same.
    partial.replace(program)
    return {"PYSPARK_PYTHON": str(program)}


def _be_daemon() -> None:
    # As `python -m` begins: the first place to import from is the folder.
    sys.path[0] = str(Path.cwd())
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    _be_daemon()
