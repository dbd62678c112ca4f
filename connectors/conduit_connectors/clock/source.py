"""The clock source: gives the time at intervals, and once more when all other sources of the pipeline have ended."""

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import trio
from pydantic import Field

from conduit_connectors.numbering import number_of, positions_of
from conduit_py import sdk
from conduit_py.sdk import EndOfSource, Options, Record

_LOOK_SECONDS = 0.05
"""How often it looks if the other sources have ended."""


class SourceOptions(Options):
    """Options of the clock source."""

    every_seconds: float = Field(default=1.0, ge=0.01, le=86400, description="the time between two ticks")


class Source(sdk.SourceConnector[SourceOptions]):
    """Gives a tick at every interval: the time as `now`, and whether it is the `first` of a run or at the `end`.

    The last tick comes when all other sources have ended and everything that they gave is committed.
    """

    follows_others: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False

    def __init__(self, *, every_seconds: float = 1.0) -> None:
        super().__init__(every_seconds=every_seconds)

    @property
    def gives(self) -> type:
        return dict

    async def open(self, position: bytes | None) -> None:
        self._number = 0 if position is None else number_of("clock", position) + 1
        # One look at the clock of the machine for each run: within it, time neither jumps nor goes back.
        self._opened = datetime.now(UTC), trio.current_time()
        self._first = True
        self._ended = False
        self._due = trio.current_time()

    async def read(self, n: int) -> list[Record]:
        while not self._ended:
            now = trio.current_time()
            self._ended = self.others_done()
            if self._ended or now >= self._due:
                self._due = max(self._due + self.options.every_seconds, now)
                return [self._tick(now)]
            await trio.sleep(min(self._due - now, _LOOK_SECONDS))
        raise EndOfSource

    def _tick(self, now: float) -> Record:
        at = self._opened[0] + timedelta(seconds=now - self._opened[1])
        tick = Record.of({"now": at, "first": self._first, "end": self._ended})
        [tick.position] = positions_of("clock", [self._number])
        self._number += 1
        self._first = False
        return tick

    def check_position(self, position: bytes) -> None:
        number_of("clock", position)
