"""`field.exclude` removes fields."""

from collections.abc import Sequence
from typing import Annotated, Any, Required, TypedDict, Unpack

from pydantic import BeforeValidator, Field

from conduit_processors.field_processor import Removable, split_field_list
from conduit_py.sdk import Options, Processor, Record, Unchanged
from conduit_py.sdk.template import FieldPath, RecordPart


class ExcludeOptions(Options):
    """Options of field.exclude."""

    fields: Annotated[list[Removable], BeforeValidator(split_field_list)] = Field(
        min_length=1, description="what to remove: a list of field paths, or one text with commas between them"
    )


class ExcludeArguments(TypedDict, total=False):
    """ExcludeOptions as a caller writes them, for editors and type checkers."""

    fields: Required[Sequence[str | FieldPath]]


class Exclude(Processor[ExcludeOptions]):
    """Removes fields and what is in them; a key or payload as a whole becomes absent, metadata empty.

    A record that lacks a field is left alone. A field of something that is not structured data is
    refused: it could hide in raw bytes that go on with it.
    """

    blocking = False
    _fields: list[FieldPath]
    _wholes: list[FieldPath]

    def __init__(self, **options: Unpack[ExcludeArguments]) -> None:
        super().__init__(**options)

    @property
    def takes(self) -> Any:
        inner = any(field.part is RecordPart.AFTER and field.names for field in self.options.fields)
        return dict | None if inner else Any

    @property
    def gives(self) -> Any:
        parts = {field.part for field in self.options.fields}
        if not parts & {RecordPart.AFTER, RecordPart.PAYLOAD}:
            return Unchanged
        return dict | None if all(field.names for field in self.options.fields) else Any

    def open(self) -> None:
        self._fields = [field for field in self.options.fields if field.names]
        self._wholes = [field for field in self.options.fields if not field.names]

    def process(self, record: Record) -> Record:
        # All are found before any is removed, so that a refused record is as it came.
        found = [(field.holder(record), field.names[-1]) for field in self._fields]
        for holder, name in found:
            if holder is not None:
                holder.pop(name, None)
        for whole in self._wholes:
            whole.delete(record)
        return record
