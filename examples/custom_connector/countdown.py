"""A source and a destination of one's own: what a connector author writes, and nothing else."""

from pathlib import Path

from pydantic import Field

from conduit_py.sdk import Batch, DestinationConnector, EndOfSource, Options, Record, SourceConnector


class CountdownOptions(Options):
    """From where to count."""

    start: int = Field(gt=0, description="the first number")


class Countdown(SourceConnector[CountdownOptions]):
    """Counts down to 1. The position of a record is its number, so reading resumes exactly after it."""

    def open(self, position: bytes | None) -> None:
        self._next = self.options.start if position is None else int(position) - 1

    def read(self, n: int) -> list[Record]:
        if self._next == 0:
            raise EndOfSource
        last = max(self._next - n, 0)
        numbers = range(self._next, last, -1)
        self._next = last
        return [Record.of({"number": number}, position=b"%d" % number) for number in numbers]


class TotalOptions(Options):
    """Where to keep the sum."""

    path: Path = Field(description="the file that holds the sum")


class Total(DestinationConnector[TotalOptions]):
    """Adds the numbers up and keeps the sum in a file; refuses 13. At-least-once: a restart adds again."""

    def open(self) -> None:
        self._sum = 0

    def write(self, batch: Batch) -> dict[int, str] | None:
        refused = {index: "unlucky" for index, record in enumerate(batch) if record.payload["number"] == 13}
        self._sum += sum(record.payload["number"] for index, record in enumerate(batch) if index not in refused)
        self.options.path.write_text(f"{self._sum}\n")
        return refused or None
