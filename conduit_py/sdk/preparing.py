"""PreparingDestination: a destination whose records can be made ready elsewhere, by many processes side by side."""

from abc import abstractmethod
from collections.abc import Awaitable, Sequence

from conduit_py.batch import Batch
from conduit_py.errors import TransientError
from conduit_py.sdk.destination import Destination, Refusals
from conduit_py.sdk.plugin import OptionsT


class PieceRefused(TransientError):
    """A destination does not take a piece because of some record in it. Nothing of the piece was written."""

    code = "run.piece_refused"


class PreparingDestination(Destination[OptionsT]):
    """Can have the work of writing done elsewhere, up to the bytes, so that little is left to do in its own place.

    On one machine it is a destination like any other. On Spark a task gives its records to `prepare` of an instance
    of its own, which is never opened and reaches nothing outside of its process, and sends what `prepared`
    returns to the driver. There `take` comes in place of `write`, in the order of the records, between the same
    calls: what it writes is flushed, staged, committed and applied as if it had been given the records. In between,
    `write` is called too: with dead letters that are sent again, which come one by one.
    """

    def prepares(self, *, exactly_once: bool) -> bool:
        """Whether it can do so with the options it has, in a pipeline of that kind."""
        return True

    def equipment(self) -> bytes:
        """What instances elsewhere have to know beyond the options. Asked of one that is not opened either.

        It is asked on the driver, when that has its Spark, and may take its time.
        """
        return b""

    def equip(self, equipment: bytes) -> None:
        """Get to know it, before anything is prepared."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Refusals | None:
        """Make records ready, after those of the calls before. Which of them are refused, and why, as of `write`."""

    @abstractmethod
    def prepared(self) -> bytes:
        """Everything since `prepare` was first called, as one piece."""

    @abstractmethod
    def take(self, pieces: Sequence[bytes]) -> Awaitable[None] | None:
        """Write the records of these pieces, in order; they are handled when those of a `write` would be.

        Raises PieceRefused when one of the records is not taken: the pipeline then goes back to where it was and
        gives them to `write`, which can say which one.
        """
