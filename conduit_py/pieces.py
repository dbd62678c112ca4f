"""Pieces: what a record was split into by nodes of another process, with the identities that it got there."""

from collections.abc import Iterable, Sequence

from conduit_py.batch import Piece
from conduit_py.record import Record


class Pieces(list[Record]):
    """A result that says which piece of the record each one is: not as many as arrive here were made there."""

    def __init__(self, records: Iterable[Record], names: Sequence[Piece]) -> None:
        super().__init__(records)
        assert len(self) == len(names)
        self.names = names
