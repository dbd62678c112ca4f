"""Source: where records come from."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar

import msgspec

from conduit_py.record import Record
from conduit_py.sdk.plugin import Connector, OptionsT
from conduit_py.sdk.tally import Tally


class EndOfSource(Exception):
    """Raised by `read` when a bounded source has no more records: the source is completed, not failed."""


class NothingYet(Exception):
    """Raised by `read` when there is no record now: the runtime asks again after a growing pause."""


class Reading(msgspec.Struct):
    """Records of which some could not be understood: `refused` maps their index to the reason.

    A refused record carries what was read, as raw bytes, and its position: it becomes a dead letter.
    """

    records: list[Record]
    refused: Mapping[int, str]


class Lag(msgspec.Struct, frozen=True):
    """How much there is that a source has not read yet: what of it is known, in units that it knows."""

    records: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    """How long ago the oldest of it came to be."""


class Source(Connector[OptionsT], ABC):
    """Reads records in a stable order and can say where it is.

    Calls come in this order, never two of `open`, `read` and `teardown` at once:
    `open`, `read` again and again, `stop`, `teardown`. `ack` may be called while `read`
    waits; a sync `ack` has a thread of its own for that.
    """

    resumable: ClassVar[bool] = True
    """Whether `open` with the position of a record continues exactly after that record."""
    tally: Tally | None = None
    """What a source over a shared queue counts while it runs, for metrics and the page."""

    def open(self, position: bytes | None) -> Awaitable[None] | None:
        """Get ready to read what follows `position`; None is from the beginning."""

    @abstractmethod
    def read(self, n: int) -> "Awaitable[list[Record] | Reading] | list[Record] | Reading":
        """Wait for records and return at least one and at most `n`, in order, each with its own position.

        Raise EndOfSource when there will never be more, NothingYet when there is none now. A read that
        is cancelled (async) or told to `stop` must not have lost a record for the next run.
        """

    def ack(self, positions: Sequence[bytes]) -> Awaitable[None] | None:
        """Everything up to the last of these positions is durably handled: called in order, once each."""

    def lag(self) -> Awaitable[Lag | None] | Lag | None:
        """How much there is that `read` has not returned yet; None if that is not known.

        Asked every few seconds between `open` and `teardown`, beside all other calls: a sync one runs in a
        thread of its own, and may be under way while `teardown` is called. What it raises is logged.
        """
        return None

    def stop(self) -> Awaitable[None] | None:
        """Make a waiting `read` return what it has or raise EndOfSource.

        Without a `stop` of its own, an async source has its waiting `read` cancelled instead.
        """
