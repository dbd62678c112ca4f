"""Device: a character device that takes lines, such as /dev/null or a terminal."""

import os
import stat
from pathlib import Path

from conduit_py.sdk import FatalError, TransientError


class Device:
    """Takes lines and keeps nothing: what was written cannot be taken back, read, locked or made durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise FatalError(
                f"cannot open {path} for writing: {error.strerror}",
                suggestion="give the user that runs this write permission on it",
            ) from error

    def size(self) -> int:
        """How much this run has written."""
        return self._size

    def append(self, text: bytes) -> None:
        """Write whole lines. On an error part of them may be written: TransientError."""
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise TransientError(f"cannot write {len(text)} bytes to {self.path}: {error.strerror}") from error
        self._size += len(text)

    def close(self) -> None:
        os.close(self._fd)


def is_device(path: Path) -> bool:
    """Whether there is a character device at the path."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False
