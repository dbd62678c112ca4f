"""TapProcess: a tap in a process of its own. Its lines come through a bounded pipe, its messages go to the log."""

import logging
import os
import re
import select
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from conduit_connectors.lines import LineBuffer, Lines
from conduit_py.sdk import EndOfSource, FatalError, NothingYet, TransientError, encode_json

_logger = logging.getLogger("conduit_py.singer")
_BLOCK_SIZE = 64 * 1024
_WAIT_SECONDS = 0.5
_STOP_SECONDS = 5
_LOG_LINE_MAX = 2000
_KEPT_LOG_LINES = 5
_SERIOUS = re.compile(r"\b(WARN|WARNING|ERROR|CRITICAL|FATAL)\b|^(error|warning):")
_METRIC = re.compile(r"\bMETRIC: ")


class TapProcess:
    """One run of a tap. `files` are given to it as JSON, by argument: `{"--config": {...}}`.

    They are in memory and have no name in a folder, so nothing of them is left on a disk, whatever ends us. `secrets`
    are replaced in what the tap logs. A byte in the pipe `wake` ends a wait, which nothing else can interrupt.
    """

    def __init__(
        self,
        command: Sequence[str],
        arguments: Sequence[str],
        files: Mapping[str, Any],
        *,
        wake: int,
        secrets: Sequence[str] = (),
        line_size_max: int,
    ) -> None:
        # The last word: the first may be `uvx` or `python`.
        self._name = os.path.basename(command[-1])
        self._secrets = sorted((each for each in secrets if each), key=len, reverse=True)
        self._files = {argument: _unnamed_file(content) for argument, content in files.items()}
        # Named by our process, because a wrapper around the tap may close what it inherits.
        named = [part for argument, fd in self._files.items() for part in (argument, f"/proc/{os.getpid()}/fd/{fd}")]
        self._out = LineBuffer(0, line_size_max)
        self._log = LineBuffer(0, _LOG_LINE_MAX)
        self._last_log: deque[str] = deque(maxlen=_KEPT_LOG_LINES)
        self._wake = wake
        try:
            self._process = subprocess.Popen(
                [*command, *arguments, *named],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # A group of its own: a wrapper and the tap end together, and Ctrl-C is ours to handle.
                start_new_session=True,
            )
        except OSError as error:
            self._close_files()
            raise FatalError(
                f"the tap {command[0]!r} cannot be started: {error.strerror}",
                suggestion="install it in an environment of its own and give the path of its command, "
                "or use `uvx --from PACKAGE TAP`",
            ) from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams = {self._process.stdout.fileno(): self._out, self._process.stderr.fileno(): self._log}

    def take(self, n: int) -> Lines:
        """Take at most `n` lines. Raises NothingYet after a while, EndOfSource at the end or when woken.

        Raises TransientError if the tap failed.
        """
        while not len(self._out):
            self._fill()
        return self._out.take(n)

    def close(self) -> None:
        """End the tap and all that it has started, and close what is open."""
        self._end(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        # Also after a tap that ended: it may have left processes of its group.
        self._end(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        self._close_files()

    def _end(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, how)

    def _close_files(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files = {}

    def _fill(self) -> None:
        if not self._streams:
            self._raise_the_end()
        ready = _wait([*self._streams, self._wake])
        if self._wake in ready:
            raise EndOfSource
        if not ready:
            raise NothingYet
        for fd in ready:
            block = os.read(fd, _BLOCK_SIZE)
            buffer = self._streams[fd]
            if block:
                buffer.feed(block)
            else:
                buffer.finish()
                del self._streams[fd]
            if buffer is self._log:
                self._log_lines()

    def _log_lines(self) -> None:
        for text in self._log.take(len(self._log)).texts:
            line = text.decode(errors="replace").rstrip()
            for secret in self._secrets:
                line = line.replace(secret, "***")
            line = "".join(each if each.isprintable() else " " for each in line)
            if line:
                self._last_log.append(line)
                quiet = logging.DEBUG if _METRIC.search(line) else logging.INFO
                _logger.log(logging.WARNING if _SERIOUS.search(line) else quiet, "%s: %s", self._name, line)

    def _raise_the_end(self) -> None:
        try:
            code = self._process.wait(_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            # It closed its output and does something else.
            raise NothingYet from None
        if code == 0:
            raise EndOfSource
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = f": {' / '.join(self._last_log)}" if self._last_log else ""
        raise TransientError(
            f"{self._name} {ending}{said}", suggestion="see what it says, and check its `command` and `config`"
        )


def _unnamed_file(content: Any) -> int:
    fd = os.memfd_create("conduit-singer")
    os.write(fd, encode_json(content))
    return fd


def _wait(fds: list[int]) -> list[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(_WAIT_SECONDS * 1000)]
