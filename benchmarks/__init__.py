"""Side-by-side comparisons: what conduit-py costs against a plain loop and against bytewax."""

import os
import sys
import time
from pathlib import Path

# The cluster and the figures of processes come from what tests use too, which is in no package.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))

SLOWNESS_VARIABLE = "BENCHMARK_SLOWNESS"
_clock, _slowness = time.perf_counter, float(os.environ.get(SLOWNESS_VARIABLE, "1"))
if _slowness != 1:
    # Before anything imports it. Under valgrind the clock would run on while hardly anything is done: every batch
    # would have its own commit, flush and turn of all tasks, which many batches share at full speed.
    time.perf_counter = lambda: _clock() / _slowness
