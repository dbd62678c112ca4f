"""What Spark needs on this machine: PySpark, checked when this module is imported, and Java.

The package imports this module first, so that the error names what to install.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from conduit_py.errors import FatalError

MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]

if MISSING:
    advice = "pip install 'conduit-dataflow[spark]'"
    raise ImportError(f"Spark needs {' and '.join(MISSING)}, not installed here: {advice}", name=MISSING[0])


VERSION_MIN = 17
_ADVICE = (
    f"install a Java runtime of version {VERSION_MIN} or newer, on Debian `apt-get install openjdk-17-jre-headless`, "
    "or set JAVA_HOME to the folder of one"
)


def require_java() -> None:
    """Check that Spark will find a Java that can run it. Raises FatalError, with what to install."""
    java = _java()
    version = _version(java)
    if version < VERSION_MIN:
        raise FatalError(
            f"Spark needs Java {VERSION_MIN} or newer, and {java} is version {version}", suggestion=_ADVICE
        )


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.exists():
            raise FatalError(f"JAVA_HOME is {home}, but there is no {java}", suggestion=_ADVICE)
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise FatalError("Spark runs on Java, and there is none on this machine", suggestion=_ADVICE)
    return found


def _version(java: str) -> int:
    try:
        # Java prints its version to stderr.
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FatalError(f"{java} does not run: {error}", suggestion=_ADVICE) from error
    # "1.8.0_392" was version 8; "17.0.15" is version 17.
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    if match is None:
        raise FatalError(f"{java} does not print its version: {printed.strip()[:200]!r}", suggestion=_ADVICE)
    return int(match.group(1))
