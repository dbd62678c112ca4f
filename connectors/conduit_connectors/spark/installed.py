"""Whether PySpark is installed; imported before anything that needs it, so that what is missing has a name."""

import importlib.util

MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]

if MISSING:
    raise ImportError(
        f"the spark connector needs {' and '.join(MISSING)}, not installed here: pip install 'conduit-dataflow[spark]'"
    )
