"""The Java that Spark runs on: what it needs on this machine, and how its process is started.

The package imports this module first, so that the error names what to install. PySpark is looked for here and imported
only when Java starts. Others can neither read the settings of that process nor reach a local one.
"""

import importlib.util
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
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


_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"


def local_conf(master: str) -> dict[str, str]:
    """Return defaults for a master in this process: its ports are on loopback, and a peer must know a secret."""
    if not master.startswith("local"):
        return {}
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_urlsafe(32),
    }


def start_gateway(master: str, conf: Mapping[str, str]) -> None:
    """Start Java with these settings, unless this process has one already.

    PySpark itself would put every setting on Java's command line, where every user of the machine reads it. A file
    that only this user reads takes its place, and is deleted when Java runs.
    """
    from pyspark import SparkContext

    with tempfile.TemporaryDirectory(prefix="conduit-spark-") as folder:
        file = Path(folder) / "spark.properties"
        file.touch(mode=0o600)
        settings = {"spark.master": master, **conf}
        file.write_text("".join(f"{_escape(name)}={_escape(value)}\n" for name, value in settings.items()))
        before = os.environ.get(_SUBMIT_ARGS)
        os.environ[_SUBMIT_ARGS] = _arguments(before, file)
        try:
            SparkContext._ensure_initialized()
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = before


def _arguments(given: str | None, file: Path) -> str:
    """Return the arguments of spark-submit: the user's, and then ours, because the last file counts."""
    words = shlex.split(given or _SHELL)
    at = words.index(_SHELL) if _SHELL in words else len(words)
    # Without the flag, a file of settings takes the place of spark-defaults.conf.
    return shlex.join([*words[:at], "--properties-file", str(file), "--load-spark-defaults", *words[at:]])


def _escape(text: str) -> str:
    """Escape a name or value as a file of Java properties needs it."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
