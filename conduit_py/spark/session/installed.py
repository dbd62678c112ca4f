"""Checks that PySpark is installed. Imported before anything that needs it, so that the error names what to install."""

import importlib.util

MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]

if MISSING:
    raise ImportError(f"Spark needs {' and '.join(MISSING)}, not installed here: pip install 'conduit-dataflow[spark]'")
