"""Staging: lines that wait for their transaction, and how they get into the file exactly once."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from conduit_connectors.file.appender import Appender
from conduit_py.sdk import FatalError


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """To have `text` in the file at `offset`. It carries the lines themselves: nothing is staged beside the file."""

    offset: int
    text: bytes


class Staging:
    """Gathers lines and appends them when told, each transaction once, however often it is told.

    What is already there is recognised by its place and content, so a crash at any moment, also in the
    middle of a write, is made good by telling it again.
    """

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._lines: list[bytes] = []

    def recover(self, intents: Sequence[bytes]) -> None:
        """Append what the last transaction left to do; after an orderly end that is nothing, wherever the file is."""
        if not self._appender.ended_well:
            for intent in intents:
                self.apply(intent)
        self._appender.fulfil()

    def size(self) -> int:
        """How long the file will be with everything that waits."""
        return self._appender.size() + sum(map(len, self._lines))

    def add(self, text: bytes) -> None:
        self._lines.append(text)

    def stage(self) -> bytes | None:
        if not self._lines:
            return None
        intent = Intent(self._appender.size(), b"".join(self._lines))
        self._lines = []
        # From now on only an orderly end after `apply` counts as one.
        self._appender.promise()
        return msgspec.msgpack.encode(intent)

    def apply(self, encoded: bytes) -> None:
        """Append the lines, or what is missing of them; durable on return."""
        intent = msgspec.msgpack.decode(encoded, type=Intent)
        there = self._appender.read(intent.offset, len(intent.text))
        if self._appender.size() < intent.offset or not intent.text.startswith(there):
            raise _changed(self._appender.path, intent)
        if missing := intent.text[len(there) :]:
            self._appender.append(missing)
        self._appender.sync()
        self._appender.fulfil()


def _changed(path: Path, intent: Intent) -> FatalError:
    return FatalError(
        f"{path} is not as it was left: {len(intent.text)} bytes of the last transaction belong at {intent.offset}, "
        f"but {'there is something else' if os.path.getsize(path) >= intent.offset else 'it is shorter than that'}",
        suggestion=f"put {path.name} back as it was when the pipeline ended; it may be moved away only after an "
        "orderly stop, and nobody else may write it",
    )
