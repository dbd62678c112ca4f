"""Tally: what a source over a queue that others share has counted."""

import msgspec


class Tally(msgspec.Struct):
    """`held` is how many leases are kept just now; the others only grow while a source runs."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    taken_over: int = 0
    """Pieces of work that somebody else had begun and left."""
    duplicates: int = 0
    """Messages that were delivered though their work was done, or begun, already."""
    unreadable: int = 0
    """Messages that are not what they should be."""
    failed: int = 0
    """Objects that could not be opened or read."""

    def plus(self, earlier: "Tally | None") -> "Tally":
        """A new one with the counts of both; what is held is held now."""
        if earlier is None:
            return msgspec.structs.replace(self)
        counts = {name: getattr(self, name) + getattr(earlier, name) for name in self.__struct_fields__}
        return Tally(**counts | {"held": self.held})
