"""DeliveredIds: the messages that a destination has written, so that it recognises them when they come again."""

from collections.abc import Mapping, Sequence

from conduit_py.sdk import Batch

Names = Mapping[str, Sequence[bytes]]
"""By owner the positions of its messages, which identify them for ever; under "" the keys of pieces."""

_PIECES = ""


def ids_of(batch: Batch, indices: Sequence[int]) -> dict[str, list[bytes]]:
    """The ids of the messages at these indices, which are ascending."""
    positions, owner = batch.positions, _owner(batch)
    if batch.pieces is None:
        if len(indices) == len(batch):
            return {owner: list(positions)}
        return {owner: [positions[index] for index in indices]}
    whole = [positions[index] for index in indices if not batch.pieces[index]]
    # Pieces share the position of their record, so the delivery key, which costs more, identifies them.
    pieces = [batch.delivery_key(index) for index in indices if batch.pieces[index]]
    return {owner: whole, _PIECES: pieces}


class DeliveredIds:
    """The ids of the messages written last, to recognise those that come again."""

    def __init__(self) -> None:
        self._names: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def add(self, names: Names) -> None:
        for owner, each in names.items():
            self._names.setdefault(owner, set()).update(each)

    def remove(self, names: Names) -> None:
        for owner, each in names.items():
            self._names.get(owner, set()).difference_update(each)

    def among(self, batch: Batch) -> set[int]:
        """The indices of messages whose ids are known."""
        known, positions = self._names.get(_owner(batch), set()), batch.positions
        if batch.pieces is None:
            if not known or known.isdisjoint(positions):
                return set()
            return {index for index, position in enumerate(positions) if position in known}
        pieces = self._names.get(_PIECES, set())
        return {
            index
            for index, piece in enumerate(batch.pieces)
            if (batch.delivery_key(index) in pieces if piece else positions[index] in known)
        }


def _owner(batch: Batch) -> str:
    return "\0".join(batch.owner)
