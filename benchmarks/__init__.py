"""Side-by-side comparisons: what conduit-py costs against a plain loop and against bytewax."""

import sys
from pathlib import Path

# The cluster and the figures of processes come from what tests use too, which is in no package.
sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
