"""Warm Python: a program in a process of its own that need not import what it uses: most of a short run's work is that.

A nursery imports the command once for each process of pytest, and forks itself for each program. What a test does to
such a process, it does to a real one: it has its own arguments, folder, environment, streams, signals and end.
`WarmPython` takes the place of `subprocess.Popen`, and `run_warm` that of `subprocess.run`. In the lines of `run_bash`,
`conduit-py` and `python` are such programs. A test of the start itself, or one that limits or traces the process,
starts it by `subprocess`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

COMMAND = Path(sys.executable).with_name("conduit-py")
_COMMAND_MODULE = "conduit_py.cli.main"
_BARE = (_COMMAND_MODULE, "conduit_py.cli.check", "conduit_py.cli.run")
"""The command alone, without a connector and its library."""
_PRELOADED = (
    *_BARE,
    "conduit_connectors.file",
    "conduit_connectors.generator",
    "conduit_connectors.journal",
    "conduit_connectors.kafka",
    "conduit_connectors.log",
    "conduit_connectors.memory",
    "conduit_connectors.mysql",
    "conduit_connectors.postgres",
    "conduit_connectors.sqlite",
    "conduit_connectors.stdio",
    "conduit_py.cli.client",
    "conduit_py.cli.serve",
    "conduit_py.server.serve",
    "conduit_py.store.postgres.store",
    "conduit_py.testing",
)
_READ_AT_START = ("PYTHON", "LD_")
"""Beginnings of the names of variables that Python and its loader read at the start of a process."""
_REQUEST_MAX = 1024 * 1024
_SECONDS_MAX = 300


class WarmPython(subprocess.Popen[Any]):
    """A command line that starts Python or `conduit-py`, as a fork of the nursery.

    The nursery has imported the `preloaded` modules too, from the first program on that asks for them. A `bare` one has
    imported no connector and no library of one.
    """

    def __init__(
        self, command: Sequence[str | Path], preloaded: Sequence[str] = (), *, bare: bool = False, **settings: Any
    ) -> None:
        self._preloaded = preloaded
        self._bare = bare
        super().__init__([str(word) for word in command], **settings)

    def _execute_child(self, command: Sequence[str], *inherited: Any) -> None:
        # By their order in the call by Popen: the folder, the environment, three pairs of descriptors, the session.
        (folder, environment), pipes, session = inherited[4:6], inherited[9:15], inherited[20]
        streams = [own if own != -1 else inherited for inherited, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._answers, written = os.pipe()
        request = {
            "arguments": _arguments_of(command),
            "folder": str(folder or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "session": session,
            "preloaded": self._preloaded,
        }
        socket.send_fds(_nursery(self._bare), [json.dumps(request).encode()], [*streams, written])
        os.close(written)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = int(_read_line(self._answers))

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._end()
        return self.returncode

    def _has_ended(self, seconds: float | None) -> bool:
        # Not `select`, which supports only the first 1024 descriptors.
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _end(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(int(_read_line(self._answers)))
        os.close(self._answers)


class WarmCommand(WarmPython):
    """`conduit-py` with these arguments."""

    def __init__(self, *arguments: str, **settings: Any) -> None:
        super().__init__([COMMAND, *arguments], text=True, **settings)


def run_warm(
    command: Sequence[str | Path],
    *,
    check: bool = False,
    timeout: float = _SECONDS_MAX,
    preloaded: Sequence[str] = (),
    bare: bool = False,
    **settings: Any,
) -> "subprocess.CompletedProcess[str]":
    """Run a command line that starts Python to its end, with nothing to read. What it prints is returned as text."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    start = _start_of(settings.get("env", os.environ), preloaded, bare)
    with start(command, text=True, **(streams | settings)) as process:
        try:
            said = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(command, process.returncode, *said)
    if check:
        ended.check_returncode()
    return ended


_CALLER = """#!{python} -IS
import os, sys, json, signal, socket
own = {{name: value for name, value in os.environ.items() if name.startswith({read_at_start})}}
words = sys.argv[1:]
if own != {inherited} or not {arguments}:
    os.execv({program!r}, [{program!r}, *words])
answers, written = os.pipe()
umask = os.umask(0)
os.umask(umask)
request = {{
    "arguments": {arguments}, "folder": os.getcwd(), "environment": dict(os.environ), "umask": umask,
    "session": False, "preloaded": ("pytest",) if "pytest" in words else (),
}}
nursery = socket.socket(fileno=int(os.environ["CONDUIT_WARM_NURSERY"]))
socket.send_fds(nursery, [json.dumps(request).encode()], [0, 1, 2, written])
os.close(written)
nursery.detach()
lines = os.fdopen(answers)
child = int(lines.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, _: os.kill(child, number))
code = os.waitstatus_to_exitcode(int(lines.readline()))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
"""A program that asks the nursery for another, lends it its streams, hands its signals on and ends as it does."""


def run_bash(line: str, *, cwd: Path, timeout: float = _SECONDS_MAX) -> "subprocess.CompletedProcess[str]":
    """Run a line of the shell, in which `conduit-py` and `python` are forks of the nursery."""
    nursery = _nursery(False).fileno()
    places = [str(_callers()), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": ":".join(places), "CONDUIT_WARM_NURSERY": str(nursery)}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env=environment,
        pass_fds=[nursery],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@cache
def _callers() -> Path:
    """A folder with the programs that the shell finds first."""
    folder = tempfile.TemporaryDirectory(prefix="conduit-py-callers-")
    atexit.register(folder.cleanup)
    inherited = {name: value for name, value in os.environ.items() if name.startswith(_READ_AT_START)}
    for name, program, arguments in (
        (COMMAND.name, str(COMMAND), f"['-m', {_COMMAND_MODULE!r}, *words]"),
        ("python", sys.executable, "(words if words and (words[0] in ('-c', '-m') or words[0][0] != '-') else [])"),
    ):
        caller = Path(folder.name) / name
        caller.write_text(
            _CALLER.format(
                python=sys.executable,
                program=program,
                arguments=arguments,
                inherited=inherited,
                read_at_start=_READ_AT_START,
            )
        )
        caller.chmod(0o755)
    return Path(folder.name)


def run_command(*arguments: str, cwd: Path, env: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    """Run `conduit-py` to its end, with nothing to read."""
    return run_warm([COMMAND, *arguments], cwd=cwd, env=env)


def _start_of(environment: Mapping[str, str], preloaded: Sequence[str], bare: bool) -> Any:
    """What starts the command: cold where its environment matters before its first line."""
    changed = dict(environment.items() ^ os.environ.items())
    if any(name.startswith(_READ_AT_START) for name in changed):
        return subprocess.Popen
    return partial(WarmPython, preloaded=preloaded, bare=bare)


def _arguments_of(command: Sequence[str]) -> list[str]:
    """The arguments of Python."""
    if command[0] == str(COMMAND):
        return ["-m", _COMMAND_MODULE, *command[1:]]
    if command[0] != sys.executable or (command[1].startswith("-") and command[1] not in ("-c", "-m")):
        raise ValueError(f"the nursery cannot start {command[:2]}: start it by subprocess")
    return list(command[1:])


@cache
def _nursery(bare: bool) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    modules = ",".join(_BARE if bare else _PRELOADED)
    subprocess.Popen(
        [sys.executable, __file__, str(its.fileno()), modules], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
    )
    its.close()
    return ours


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 1)
        if not read:
            raise ChildProcessError("the nursery has ended")
        line += read
    return line


def _be_nursery(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request. Returns only in a fork, with what it shall do; ends with the process of pytest."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_MAX, 4)
        if not message:
            # At once: libraries complain of what is left at the end of an interpreter, and nobody reads that.
            os._exit(0)
        request: dict[str, Any] = json.loads(message)
        _import(request["preloaded"])
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            _reap()
            continue
        # The parent of the command only waits for it: its end must be known to pytest at once.
        requests.close()
        *streams, answers = descriptors
        child = os.fork()
        if not child:
            os.close(answers)
            _take(streams)
            return request
        for stream in range(3):
            os.close(stream)
        for stream in streams:
            os.close(stream)
        os.write(answers, b"%d\n" % child)
        os.write(answers, b"%d\n" % os.waitpid(child, 0)[1])
        os._exit(0)


def _import(modules: Sequence[str]) -> None:
    missing = [name for name in modules if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        gc.freeze()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _take(streams: list[int]) -> None:
    """Have these as standard streams, with the settings that Python gives them at a start."""
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _run(request: dict[str, Any]) -> NoReturn:
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.umask(request.get("umask", os.umask(0)))
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    crash_point = importlib.import_module("conduit_py.crash_point")
    crash_point.read_environment()
    how, *arguments = request["arguments"]
    # As Python begins: the first place to import from is the folder, or that of the script.
    if how == "-m":
        module, *sys.argv[1:] = arguments
        sys.path[0] = request["folder"]
        if module == _COMMAND_MODULE:
            sys.argv[0] = "conduit-py"
            sys.exit(importlib.import_module(_COMMAND_MODULE).main())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif how == "-c":
        text, *sys.argv[1:] = arguments
        sys.argv[0], sys.path[0] = "-c", ""
        _execute(text, "<string>")
    else:
        sys.argv, sys.path[0] = [how, *arguments], str(Path(how).resolve().parent)
        _execute(Path(how).read_text(), how)
    sys.exit()


def _execute(text: str, file: str) -> None:
    """Be this program: it is `__main__` until the process ends, for its threads and its pickles too."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=__builtins__)
    exec(compile(text, file, "exec"), main.__dict__)  # noqa: S102 - a program of a test


if __name__ == "__main__":
    _import(sys.argv[2].split(","))
    _run(_be_nursery(socket.socket(fileno=int(sys.argv[1]))))
