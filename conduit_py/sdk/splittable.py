"""SplittableSource: a source whose input can be cut into parts that are read elsewhere, side by side."""

from abc import abstractmethod
from collections.abc import Awaitable

from conduit_py.sdk.plugin import OptionsT
from conduit_py.sdk.source import Source


class SplittableSource(Source[OptionsT]):
    """Can say where its next stretch of input lies without reading it, so that many machines read at once.

    On one machine it is a source like any other. On Spark the driver calls `open` and then `split` in place of
    `read`; each part goes to an executor, where another instance is given it with `open_part` and then read to its
    end. The records of all parts, one after another, must be those that `read` would have given, with the same
    positions: so a pipeline may go from one engine to the other and on from where it was.
    """

    def splits(self) -> bool:
        """Whether it can be split with the options it has."""
        return True

    @abstractmethod
    def split(self, size: int) -> Awaitable[bytes] | bytes:
        """The next part, of about `size` bytes of input, after the position given to `open` and all parts before.

        Raises EndOfSource when there will never be more, NothingYet when there is none now. It must not wait.
        """

    @abstractmethod
    def open_part(self, part: bytes) -> Awaitable[None] | None:
        """Get ready to read one part, in place of `open`: after its last record `read` raises EndOfSource."""
