"""`clone` makes several records of one."""

from typing import Required, TypedDict, Unpack

from pydantic import Field

from conduit_py.sdk import Options, Processor, Record, Unchanged

INDEX = "clone.index"


class CloneOptions(Options):
    """Options of clone."""

    count: int = Field(ge=1, description="how many copies to send on besides the record itself")


class CloneArguments(TypedDict, total=False):
    """CloneOptions as a caller writes them, for editors and type checkers."""

    count: Required[int]


class Clone(Processor[CloneOptions]):
    """Sends on the record and `count` copies, which have nothing in common with it.

    The metadata `clone.index` is 0 for the record itself and 1, 2, … for its copies.
    """

    blocking = False
    gives = Unchanged
    _count: int

    def __init__(self, **options: Unpack[CloneArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._count = self.options.count

    def process(self, record: Record) -> list[Record]:
        records = [record, *(record.copy() for _ in range(self._count))]
        for index, each in enumerate(records):
            each.metadata[INDEX] = str(index)
        return records
