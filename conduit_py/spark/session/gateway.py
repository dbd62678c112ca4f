"""Starts the Java process of a Spark driver. Others can neither read its settings nor reach a local one."""

import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

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
