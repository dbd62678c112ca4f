"""Bundle: one record that stands for many, which another process has read and made ready to be written."""

from collections.abc import Sequence

from conduit_py.record import Payload, Record


class Bundle(Record, gc=False):
    """`size` records in one, which settle together. Its position is that of the last of them.

    `payload.after` has them in a form that only those understand who made it and who are to take it.
    """

    size: int = 1

    def copy(self) -> "Bundle":
        return Bundle(position=self.position, payload=Payload(after=self.payload.after), size=self.size)


RECORDS: frozenset[type] = frozenset({Record, Bundle})
"""What may go through a pipeline: nothing else, so that nobody's subclass is taken for a plain record."""


def sizes_of(records: Sequence[Record]) -> list[int] | None:
    """How many records each of these stands for; None if each is only itself."""
    if type(records[0]) is not Bundle:
        return None
    return [record.size if isinstance(record, Bundle) else 1 for record in records]


def count_of(records: Sequence[Record]) -> int:
    """How many records these stand for."""
    sizes = sizes_of(records) if records else None
    return len(records) if sizes is None else sum(sizes)
