"""Warm Python: the command in a process of its own that need not import it: most of a short run's work is that.

A nursery imports the command once for each process of pytest, and forks it for each call. What a test does to such a
process, it does to a real one: it has its own arguments, folder, environment, streams, signals and end. A test of the
start itself, or one that limits or traces the process, starts it by `subprocess`.
"""

import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

_COMMAND = "conduit_py.cli.main"
_PRELOADED = (
    _COMMAND,
    "conduit_connectors.file",
    "conduit_connectors.generator",
    "conduit_connectors.log",
    "conduit_connectors.memory",
    "conduit_connectors.sqlite",
    "conduit_connectors.stdio",
    "conduit_py.cli.check",
    "conduit_py.cli.client",
    "conduit_py.cli.run",
    "conduit_py.cli.serve",
    "conduit_py.server.serve",
)
_READ_AT_START = ("PYTHON", "CONDUIT_KILL_AT")
"""Names of variables that Python, or the command while it is imported, reads."""
_REQUEST_MAX = 1024 * 1024
_SECONDS_MAX = 300


class WarmCommand(subprocess.Popen[str]):
    """`conduit-py` with these arguments, as a fork of the nursery."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] = os.environ, **streams: Any) -> None:
        super().__init__(arguments, cwd=cwd, env=env, text=True, **streams)

    def _execute_child(self, arguments: tuple[str, ...], *inherited: Any) -> None:
        # By their order in the call by Popen: the folder, the environment, and three pairs of descriptors.
        (folder, environment), pipes = inherited[4:6], inherited[9:15]
        streams = [own if own != -1 else inherited for inherited, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._answers, written = os.pipe()
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        socket.send_fds(_nursery(), [json.dumps(request).encode()], [*streams, written])
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
        # Not `select`, which knows only the first 1024 descriptors.
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _end(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(int(_read_line(self._answers)))
        os.close(self._answers)


def run_command(*arguments: str, cwd: Path, env: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    """Run `conduit-py` to its end, with nothing to read."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if any(name.startswith(_READ_AT_START) and os.environ.get(name) != value for name, value in env.items()):
        line = [sys.executable, "-m", _COMMAND, *arguments]
        return subprocess.run(line, cwd=cwd, env=env, text=True, timeout=_SECONDS_MAX, check=False, **streams)
    with WarmCommand(*arguments, cwd=cwd, env=env, **streams) as process:
        try:
            said = process.communicate(timeout=_SECONDS_MAX)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, *said)


@cache
def _nursery() -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen([sys.executable, __file__, str(its.fileno())], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
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
            sys.exit()
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
            request: dict[str, Any] = json.loads(message)
            return request
        for stream in range(3):
            os.close(stream)
        for stream in streams:
            os.close(stream)
        os.write(answers, b"%d\n" % child)
        os.write(answers, b"%d\n" % os.waitpid(child, 0)[1])
        os._exit(0)


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
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["conduit-py", *request["arguments"]]
    sys.path[0] = request["folder"]
    sys.exit(importlib.import_module(_COMMAND).main())


if __name__ == "__main__":
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    _run(_be_nursery(socket.socket(fileno=int(sys.argv[1]))))
