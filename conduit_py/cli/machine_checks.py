"""What a check returns, and the checks of Python, the installed packages, and the limits of the operating system."""

import platform
import re
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from conduit_py import __version__
from conduit_py.sdk.registry import list_plugins

DISTRIBUTION = "conduit-dataflow"
"""The name of conduit-py for pip."""
Verdict: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class CheckResult:
    """`ok` is fine, `warn` may cause trouble later, `fail` prevents something from running."""

    check: str
    verdict: Verdict
    message: str
    fix: str | None = None


def ok(check: str, message: str) -> CheckResult:
    return CheckResult(check, "ok", message)


def warn(check: str, message: str, fix: str | None = None) -> CheckResult:
    return CheckResult(check, "warn", message, fix)


def fail(check: str, message: str, fix: str | None = None) -> CheckResult:
    return CheckResult(check, "fail", message, fix)


BUILT_AT = 1_760_000_000
"""October 2025: a clock that shows an earlier time is wrong."""
FILES_MIN = 1024
DEVELOPER_EXTRAS = ("testing", "dev", "bench")
"""Extras for those who work on conduit-py or test with it; pipelines need none of them."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_machine() -> Iterator[CheckResult]:
    """Check Python, the installed packages, and the limits and clock of the operating system."""
    yield check_python()
    yield check_packages()
    yield check_extras()
    yield from check_plugins()
    yield check_java()
    yield check_open_files()
    yield check_clock()
    yield check_time_zones()
    yield check_encoding()
    yield check_temporary()


def check_python() -> CheckResult:
    return ok(
        "python", f"Python {platform.python_version()}, conduit-py {__version__}, SQLite {sqlite3.sqlite_version}"
    )


def check_packages() -> CheckResult:
    """Check that the packages that conduit-py requires are installed and new enough."""
    wrong = [text for text, fine in _requirements(None) if not fine]
    if wrong:
        return fail("packages", f"missing or too old: {', '.join(wrong)}", _install(*wrong))
    return ok("packages", "everything that conduit-py needs is installed")


def check_extras() -> CheckResult:
    missing = [extra for extra in _extras() if not all(fine for _, fine in _requirements(extra))]
    if not missing:
        return ok("extras", "all are installed")
    return ok("extras", f"not installed, and only needed for what they are named after: {', '.join(missing)}")


def check_plugins() -> Iterator[CheckResult]:
    """Warn of each connector and processor that should work and does not, and count the others."""
    plugins = list_plugins()
    lacking = [plugin for plugin in plugins if not plugin.available]
    unasked = {plugin.needs for plugin in lacking if _is_unasked(plugin.needs)}
    for plugin in lacking:
        if plugin.needs not in unasked:
            message = f"the {plugin.kind} {plugin.name} cannot be used: {plugin.summary}"
            yield warn("plugins", message, plugin.needs or None)
    usable = f"{len(plugins) - len(lacking)} of {len(plugins)} connectors and processors can be used"
    others = "; the others are in extras that are not installed" if unasked else ""
    yield ok("plugins", usable + others)


def _is_unasked(needs: str) -> bool:
    """Whether this command installs an extra of ours that is not there: nobody asked for it, so nothing is wrong."""
    extra = re.search(rf"{DISTRIBUTION}\[([^\]]+)\]", needs)
    return extra is not None and not all(fine for _, fine in _requirements(extra[1]))


def check_java() -> CheckResult:
    """Check for Java, which only Spark needs."""
    try:
        version("pyspark")
    except PackageNotFoundError:
        return ok("java", "not needed: Spark is not installed")
    found = shutil.which("java")
    if found is None:
        fix = "apt-get install default-jre-headless, or set JAVA_HOME"
        return warn("java", "Spark is installed, but there is no java: pipelines with Spark fail", fix)
    return ok("java", f"Spark uses {found}")


def check_open_files() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        most = "unlimited" if hard == resource.RLIM_INFINITY else hard
        fix = f"ulimit -n 4096 (at most {most} here), or LimitNOFILE=4096 in the systemd unit"
        return warn(
            "open files", f"only {soft} files may be open at once; a server with many pipelines needs more", fix
        )
    return ok("open files", f"up to {soft} at once")


def check_clock() -> CheckResult:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < BUILT_AT:
        fix = "timedatectl set-ntp true, or set the clock with date --set"
        return fail("clock", f"this clock shows {shown}, which is in the past", fix)
    return ok("clock", f"it is {shown}")


def check_time_zones() -> CheckResult:
    try:
        ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        return warn("time zones", "only UTC is installed", "apt-get install tzdata, or pip install tzdata")
    return ok("time zones", "are known")


def check_encoding() -> CheckResult:
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        fix = "set PYTHONUTF8=1, or a locale such as C.UTF-8"
        return warn("encoding", f"file names are in {encoding}: names with other characters than ASCII will fail", fix)
    return ok("encoding", "UTF-8")


def check_temporary() -> CheckResult:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
    except OSError as error:
        return warn(
            "temporary files", f"{folder} cannot be written: {error.strerror}", "set TMPDIR to a folder that can"
        )
    return ok("temporary files", f"in {folder}")


def _extras() -> list[str]:
    # From the installed metadata, not a list of ours: it cannot be out of date.
    found = [extra for text in requires(DISTRIBUTION) or () for extra in re.findall(r"extra == [\"']([^\"']+)", text)]
    return [extra for extra in dict.fromkeys(found) if extra not in DEVELOPER_EXTRAS]


def _requirements(extra: str | None) -> Iterator[tuple[str, bool]]:
    """What conduit-py, or one of its extras, needs, and whether it is installed and new enough."""
    for text in requires(DISTRIBUTION) or ():
        requirement, _, marker = text.partition(";")
        if ("extra" in marker) == (extra is not None) and (extra is None or re.search(rf"[\"']{extra}[\"']", marker)):
            yield requirement.strip(), _is_satisfied(requirement)


def _is_satisfied(requirement: str) -> bool:
    match = _NAME.match(requirement.strip())
    assert match is not None
    try:
        installed = version(match[0])
    except PackageNotFoundError:
        return False
    least = re.search(r">=\s*([0-9.]+)", requirement)
    return least is None or _numbers(installed) >= _numbers(least[1])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[0-9.]*", text)[0].strip(".").split(".") if part)  # type: ignore[index]


def _install(*packages: str) -> str:
    return f"{sys.executable} -m pip install --upgrade " + " ".join(f"'{package}'" for package in packages)
