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
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from conduit_py.errors import FatalError
from conduit_py.redaction import SECRET_NAMES

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
_LOOPBACK = "127.0.0.1"
_HOST, _BIND, _AUTHENTICATE = "spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"
_ENCRYPT, _PAGE = "spark.network.crypto.enabled", "spark.ui.enabled"
_SHOWN_SECRET = re.compile(rf"-D\S*?(?:{SECRET_NAMES})\S*=", re.IGNORECASE)
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def safe_conf(master: str, given: dict[str, str]) -> dict[str, str]:
    """Return the settings that keep others out of Spark: those that the operator has not `given` himself.

    On this machine its ports are on loopback, and a peer must have a secret. YARN and Kubernetes give each application
    a secret of its own. Nodes of a standalone cluster share one, which only its operator has.
    """
    # Whose values Spark hides in its page and event logs. Its own default misses the keys of Azure.
    conf = {"spark.redaction.regex": f"(?i){SECRET_NAMES}"}
    if _is_here(master):
        conf |= {_HOST: _LOOPBACK, _BIND: _LOOPBACK}
    if master.startswith("local"):
        conf |= {_AUTHENTICATE: "true", "spark.authenticate.secret": secrets.token_urlsafe(32)}
    elif not master.startswith("spark://") and given.get("spark.shuffle.service.enabled") != "true":
        # A shuffle service of the nodes may not be set up for it, and would refuse everybody.
        conf[_AUTHENTICATE] = "true"
    # On one machine there is nothing that others could listen to, and it costs much.
    if not _is_here(master) and (conf | given).get(_AUTHENTICATE) == "true":
        # A node that cannot encrypt is still authenticated: Spark falls back to SASL.
        conf[_ENCRYPT] = "true"
    return {name: value for name, value in conf.items() if name not in given}


def is_authenticated(master: str, given: dict[str, str]) -> bool:
    """Return True if a client of Spark with these settings must have its secret."""
    known = site_conf() | given
    return (safe_conf(master, known) | known).get(_AUTHENTICATE) == "true"


def exposures(master: str, given: dict[str, str]) -> list[str]:
    """Return a sentence for each thing with which these settings open Spark to others, with what to do about it."""
    known = site_conf() | given
    conf = safe_conf(master, known) | known
    found = []
    if conf.get(_AUTHENTICATE) != "true":
        found.append(
            f"all who reach a port of Spark on {master} can run code there: set {_AUTHENTICATE} to true"
            + (", and spark.authenticate.secret to that of the cluster" if master.startswith("spark://") else "")
        )
    elif not _is_here(master) and conf.get(_ENCRYPT) != "true":
        found.append(f"records and settings go through the network in plain text: set {_ENCRYPT} to true")
    open_to = [f"{name}={conf[name]}" for name in (_HOST, _BIND) if not _is_loopback(conf.get(name, _LOOPBACK))]
    if open_to and master.startswith("local"):
        found.append(f"Spark on {master} is open to the network: leave out {' and '.join(open_to)}")
    # Not by the settings of the site: ours, which turn it off, win over those.
    if given.get(_PAGE) == "true" and "spark.ui.filters" not in conf:
        found.append(f"the page of Spark asks for no password: leave out {_PAGE}, or set spark.ui.filters")
    shown = [name for name in _JAVA_OPTIONS if _SHOWN_SECRET.search(conf.get(name, ""))]
    if shown:
        found.append(f"every user of the machine can read {' and '.join(shown)}: set what is secret there elsewhere")
    return found


def site_conf() -> dict[str, str]:
    """Return what the operator has set for all applications, in the spark-defaults.conf of this machine."""
    home = os.environ.get("SPARK_HOME") or Path(str(importlib.util.find_spec("pyspark").origin)).parent  # type: ignore[union-attr]
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf") / "spark-defaults.conf"
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    matches = (re.match(r"\s*(spark\.[^\s=:]+)\s*[=:\s]\s*(.*?)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in matches if match}


def _is_here(master: str) -> bool:
    """Whether all of this Spark is on this machine: executors can only reach a master on loopback from here."""
    addresses = master.removeprefix("spark://").split(",")
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    return master.startswith("local") or (master.startswith("spark://") and all(map(_is_loopback, hosts)))


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


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
        variables = {_SUBMIT_ARGS: _arguments(os.environ.get(_SUBMIT_ARGS), file)}
        if _is_here(master) and conf.get(_BIND) == _LOOPBACK:
            # Spark's page, and the nodes of a `local-cluster`, go by this and not by the address of the driver.
            variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", _LOOPBACK)
        with _environment(variables):
            SparkContext._ensure_initialized()


def worker_python(python: str) -> AbstractContextManager[None]:
    """Have a Spark that starts in the block run its Python workers with this one.

    PySpark takes it from the environment alone. On the driver, where the path may lead nowhere, Java runs our own.
    """
    own = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    return _environment({"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": own})


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment of processes that are started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
