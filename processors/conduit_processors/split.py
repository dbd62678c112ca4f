"""`split` makes a record of each element of a list."""

import copy
from typing import Any, Required, TypedDict, Unpack

from pydantic import Field

from conduit_processors.field_processor import Inner
from conduit_py.sdk import Options, Processor, Record, RecordRefused, Unchanged
from conduit_py.sdk.template import FieldPath, RecordPart, kind_of

INDEX = "split.index"


class SplitOptions(Options):
    """Options of split."""

    field: Inner = Field(description="the field with the list: inside .Key, .Payload.Before or .Payload.After")


class SplitArguments(TypedDict, total=False):
    """SplitOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]


class Split(Processor[SplitOptions]):
    """Sends on a copy of the record for each element, which takes the place of the list.

    The metadata `split.index` is the place of the element in the list, from 0. A record with an empty
    list is filtered; a field that is no list is refused.
    """

    blocking = False
    _field: FieldPath

    def __init__(self, **options: Unpack[SplitArguments]) -> None:
        super().__init__(**options)

    @property
    def takes(self) -> Any:
        return dict if self.options.field.part is RecordPart.AFTER else Any

    @property
    def gives(self) -> Any:
        return dict if self.options.field.part is RecordPart.AFTER else Unchanged

    def open(self) -> None:
        self._field = self.options.field

    def process(self, record: Record) -> list[Record]:
        elements = self._field.get(record)
        if not isinstance(elements, (list, tuple)):
            raise RecordRefused(f"{self._field}: cannot be split: it is {kind_of(elements)} and not a list")
        # Copying the list into every piece would take quadratic time.
        self._field.set(record, None)
        try:
            pieces = [record.copy() for _ in elements]
        finally:
            self._field.set(record, elements)
        for index, (piece, element) in enumerate(zip(pieces, elements, strict=True)):
            self._field.set(piece, copy.deepcopy(element))
            piece.metadata[INDEX] = str(index)
        return pieces
