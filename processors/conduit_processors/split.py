"""`split` makes a record of each element of a list."""

import copy
from typing import Required, TypedDict, Unpack

from pydantic import Field

from conduit_processors.field_processor import FieldOptions, Inner, OneFieldProcessor, copies_with
from conduit_py.sdk import Record, RecordRefused
from conduit_py.sdk.template import FieldPath, kind_of

INDEX = "split.index"


class SplitOptions(FieldOptions):
    """Options of split."""

    field: Inner = Field(description="the field with the list: inside .Key, .Payload.Before or .Payload.After")


class SplitArguments(TypedDict, total=False):
    """SplitOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]


class Split(OneFieldProcessor[SplitOptions]):
    """Sends on a copy of the record for each element, which takes the place of the list.

    The metadata `split.index` is the place of the element in the list, from 0. A record with an empty
    list is filtered; a field that is no list is refused.
    """

    _field: FieldPath

    def __init__(self, **options: Unpack[SplitArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._field = self.options.field

    def process(self, record: Record) -> list[Record]:
        elements = self._field.get(record)
        if not isinstance(elements, (list, tuple)):
            raise RecordRefused(f"{self._field}: cannot be split: it is {kind_of(elements)} and not a list")
        pieces = copies_with(record, self._field, [copy.deepcopy(each) for each in elements])
        for index, piece in enumerate(pieces):
            piece.metadata[INDEX] = str(index)
        return pieces
