"""The command `doctor`: checks this machine and what `serve` would be given, and prints the results, errors last."""

import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.text import Text

from conduit_py.cli.check import require_engines
from conduit_py.cli.errors import Console, short_text
from conduit_py.cli.machine_checks import CheckResult, check_machine, fail, ok, warn
from conduit_py.cli.output import ExitCode, put_json
from conduit_py.config.load import load_folder
from conduit_py.errors import EnvironmentUnfit, PipelineInvalid, Problem, StateLocked
from conduit_py.sdk.plugin import at
from conduit_py.store.sqlite.database import APPLICATION_ID, STATE
from conduit_py.store.sqlite.files import StateLock

STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}


@dataclass(frozen=True)
class DoctorOptions:
    """What is checked: the arguments that `serve` would get."""

    pipelines: Path | None
    state: Path
    host: str
    port: int
    token_file: Path | None


def run_checks(subject: DoctorOptions, *, as_json: bool) -> ExitCode:
    """Print every result. Exit code 3 if the machine must be fixed, 2 if only pipelines must, else 0."""
    results = list(_all_checks(subject))
    if as_json:
        sound = all(result.verdict != "fail" for result in results)
        put_json({"ok": sound, "checks": [asdict(result) for result in results]})
    else:
        _print_results(results)
    failed = {result.check for result in results if result.verdict == "fail"}
    if not failed:
        return ExitCode.OK
    return ExitCode.INVALID if failed == {"pipelines"} else ExitCode.ENVIRONMENT


def _all_checks(subject: DoctorOptions) -> Iterator[CheckResult]:
    yield from check_machine()
    yield from check_state(subject.state)
    yield check_address(subject.host, subject.port)
    yield check_tokens(subject.token_file)
    yield from check_pipelines(subject.pipelines)


def _print_results(results: list[CheckResult]) -> None:
    console = Console()
    width = max(len(result.check) for result in results)
    for verdict in ("ok", "warn", "fail"):
        for result in results:
            if result.verdict == verdict:
                line = Text.assemble((f"{verdict:4}", STYLES[verdict]), f"  {result.check:{width}}  {result.message}")
                console.print(line)
                if result.fix:
                    console.print(Text(f"      {'':{width}}  {result.fix}", "green"))
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in STYLES}
    console.print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} to fix")


def check_pipelines(path: Path | None) -> Iterator[CheckResult]:
    """All problems of all pipelines, without starting any."""
    if path is None:
        yield ok("pipelines", "no folder was named, and there is none called pipelines here")
        return
    loaded = load_folder(path)
    problems, sound = list(loaded.problems), 0
    for each in loaded.pipelines:
        try:
            sound += each.graph is not None
        except PipelineInvalid as invalid:
            problems += [at(problem, each.id) for problem in invalid.problems]
    for problem in problems:
        bare = Problem(problem.path, problem.message, None, problem.file, problem.line)
        yield fail("pipelines", short_text(str(bare)), problem.suggestion and short_text(problem.suggestion))
    for warning in loaded.warnings:
        yield warn("pipelines", short_text(str(warning)))
    try:
        require_engines([each.pipeline for each in loaded.pipelines])
    except EnvironmentUnfit as unfit:
        yield fail("spark", unfit.message, unfit.suggestion)
    if sound or not problems:
        yield ok("pipelines", f"{sound} in {short_text(str(path))} {'is' if sound == 1 else 'are'} sound")


def check_address(host: str, port: int) -> CheckResult:
    """Whether a server could listen there now."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            # As the server does, or a port would seem taken for a minute after it has stopped.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Bound and not listened on: a check must never accept a connection meant for the server.
    except OSError as error:
        fix = "if that is not your server, choose another with --port; 0 is any free one"
        return warn("address", f"cannot listen on {host} port {port} now: {error.strerror or error}", fix)
    return ok("address", f"{host} port {port} is free")


def check_tokens(file: Path | None) -> CheckResult:
    from conduit_py.server.access import load_tokens

    try:
        tokens = load_tokens(file, os.environ)
    except EnvironmentUnfit as unfit:
        return fail("tokens", short_text(unfit.message), unfit.suggestion)
    if not len(tokens):
        return ok("tokens", "none: a server listens on this machine only, and accepts every local user")
    return ok("tokens", f"{len(tokens)}, which nobody else can read")


SPACE_MIN, SPACE_LOW = 64 * 1024**2, 1024**3
ELSEWHERE = "choose another directory with --state"


def check_state(directory: Path) -> Iterator[CheckResult]:
    """Check a state directory without changing anything in it."""
    yield from _check_directory(directory)
    if directory.is_dir():
        yield from _check_files(directory)


def _check_directory(directory: Path) -> Iterator[CheckResult]:
    # The closest folder that exists: the rest of the path is created by the first run.
    existing = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    if not existing.is_dir():
        yield fail("state", f"{existing} is a file, not a directory", ELSEWHERE)
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        owner = f"chown {os.getuid()} {existing}"
        yield fail("state", f"{existing} cannot be written by this user", f"{owner}, or {ELSEWHERE}")
        return
    yield ok("state", f"{directory} {'can be written' if existing == directory.absolute() else 'will be made'}")
    free = shutil.disk_usage(existing).free
    if free < SPACE_MIN:
        yield fail("space", f"only {free / 1024**2:.0f} MB are free at {existing}", f"make room, or {ELSEWHERE}")
    elif free < SPACE_LOW:
        yield warn("space", f"{free / 1024**2:.0f} MB are free at {existing}", "make room before it runs full")
    else:
        yield ok("space", f"{free / 1024**3:.0f} GB are free")


def _check_files(directory: Path) -> Iterator[CheckResult]:
    files = sorted(directory.glob("*.db"))
    if not files:
        yield ok("state files", "none yet")
        return
    try:
        # With the lock held, no server can write to the files while they are checked.
        lock = StateLock.acquire(directory)
    except StateLocked as locked:
        yield warn("lock", f"{locked.message}{_command_of(directory)}", "that is fine if it is your server")
        return
    except EnvironmentUnfit as unfit:
        yield fail("lock", unfit.message, unfit.suggestion)
        return
    try:
        yield ok("lock", "nobody uses the directory")
        for file in files:
            yield _check_file(file)
    finally:
        # Also when a check fails: a server that starts meanwhile would otherwise find the state in use.
        lock.release()


def _check_file(file: Path) -> CheckResult:
    try:
        ahead = file.stat().st_mtime - time.time()
        # Read-only: a check must not start a recovery of the file.
        with closing(sqlite3.connect(f"file:{file.absolute()}?mode=ro", uri=True, timeout=1)) as connection:
            problem, application, written = (
                connection.execute(f"PRAGMA {what}").fetchone()[0]
                for what in ("integrity_check(1)", "application_id", "user_version")
            )
    except (sqlite3.Error, OSError) as error:
        return fail(file.name, f"{file} cannot be read: {error}", _restore(file))
    if problem != "ok":
        return fail(file.name, f"{file} is damaged: {problem}", _restore(file))
    if application != APPLICATION_ID:
        return fail(file.name, f"{file} was not written by conduit-py", f"move it away, or {ELSEWHERE}")
    if file.name == "state.db" and written > STATE.version:
        message = f"{file} has format version {written}; this conduit-py can read versions up to {STATE.version}"
        return fail(file.name, message, f"pip install --upgrade conduit-dataflow, or {ELSEWHERE}")
    # A minute of tolerance: file servers have clocks of their own.
    if ahead > 60:
        return warn(file.name, f"{file} was written in the future: the clock has been set back", "check the clock")
    return ok(file.name, f"sound, format version {written}, {file.stat().st_size / 1024:.0f} KB")


def _restore(file: Path) -> str:
    return f"put back a copy of {file}, or {ELSEWHERE}: every source then starts from the beginning"


def _command_of(directory: Path) -> str:
    """The command line of the process that holds the lock, if the system shows it."""
    try:
        owner = (directory / "lock").read_text().strip()
        words = Path(f"/proc/{owner}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return f": {' '.join(words).strip()[:200]}"
