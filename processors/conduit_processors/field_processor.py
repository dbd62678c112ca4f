"""The base of processors that replace the value of one field, and the kinds of field path that options accept."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Required, TypeAlias, TypedDict, TypeVar

from pydantic import AfterValidator, Field

from conduit_py.sdk import Options, Processor, Record, RecordRefused, Unchanged
from conduit_py.sdk.template import FieldPath, RecordPart, field_path_error, split_outside_quotes


class FieldOptions(Options):
    """Options of a processor that works on one field."""

    field: FieldPath = Field(description="the field to work on")


class FieldArguments(TypedDict, total=False):
    """FieldOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]


FieldOptionsT = TypeVar("FieldOptionsT", bound=FieldOptions)


class OneFieldProcessor(Processor[FieldOptionsT], ABC):
    """A processor that replaces the value at `field`, with what that says about the payloads it takes and gives."""

    blocking = False
    takes_whole: ClassVar[Any] = Any
    gives_whole: ClassVar[Any] = Any
    """What it takes and gives if the field is `payload.after` as a whole."""

    @property
    def takes(self) -> Any:
        field = self.options.field
        if field.part is not RecordPart.AFTER:
            return Any
        return dict if field.names else self.takes_whole

    @property
    def gives(self) -> Any:
        field = self.options.field
        if field.part is not RecordPart.AFTER:
            return Unchanged
        return dict if field.names else self.gives_whole


def copies_with(record: Record, field: FieldPath, values: Sequence[Any]) -> list[Record]:
    """Return a copy of the record for each value, which takes the place of the one at `field`."""
    whole = field.get(record)
    # Copying the whole value into every piece would take quadratic time.
    field.set(record, None)
    try:
        pieces = [record.copy() for _ in values]
    finally:
        field.set(record, whole)
    for piece, value in zip(pieces, values, strict=True):
        field.set(piece, value)
    return pieces


class FieldProcessor(OneFieldProcessor[FieldOptionsT], ABC):
    """Replaces the value at `field` by what `change` makes of it; a record without the field is refused.

    Null and absent values stay as they are.
    """

    whole: bool
    """The field is a key or a payload as a whole, which hold raw bytes or structured data and nothing else."""
    _after: bool
    _update: Callable[[Record, Callable[[Any], Any]], None]
    _change: Callable[[Any], Any]

    def open(self) -> None:
        field = self.options.field
        self.whole = not field.names
        self._after = self.whole and field.part is RecordPart.AFTER
        # Looked up once here: per record, a property and a bound method would cost as much as the work.
        self._update, self._change = field.update, self.change

    def process(self, record: Record) -> Record:
        # The payload is changed most often, so it is worth sparing it two calls a record.
        if self._after:
            payload = record.payload
            payload.after = self._change(payload.after)
        else:
            self._update(record, self._change)
        return record

    @abstractmethod
    def change(self, value: Any) -> Any:
        """The new value for one that may be None; raise `refusal` for one that has none.

        For a key or a payload as a `whole` it must be one that they can hold.
        """

    def refusal(self, reason: str, *, suggestion: str | None = None) -> RecordRefused:
        return RecordRefused(f"{self.options.field}: {reason}", suggestion=suggestion)


def split_field_list(value: object) -> object:
    """A list of field paths as Conduit writes it, in one text with commas; anything else as it is."""
    return split_outside_quotes(value, ",") if isinstance(value, str) else value


def _settable(path: FieldPath) -> FieldPath:
    if path.part is RecordPart.POSITION:
        raise field_path_error(".Position belongs to the source and never changes")
    if path.part is RecordPart.RECORD:
        raise field_path_error("a record cannot be replaced as a whole")
    if path.part is RecordPart.PAYLOAD:
        raise field_path_error("choose .Payload.Before or .Payload.After")
    return path


def _removable(path: FieldPath) -> FieldPath:
    if path.part in (RecordPart.RECORD, RecordPart.POSITION, RecordPart.OPERATION):
        raise field_path_error(f"{path.part.value} is what every record has")
    return path


def _encodable(path: FieldPath) -> FieldPath:
    if path.part in _DATA or (path.part is RecordPart.METADATA and path.names):
        return path
    raise field_path_error("it must be in .Key, .Payload.Before, .Payload.After or .Metadata")


def _structurable(path: FieldPath) -> FieldPath:
    if path.part in _DATA:
        return path
    raise field_path_error("it must be in .Key, .Payload.Before or .Payload.After")


def _inner(path: FieldPath) -> FieldPath:
    if path.part in _DATA and path.names:
        return path
    raise field_path_error("it must name a field inside .Key, .Payload.Before or .Payload.After")


def _in_payload(path: FieldPath) -> FieldPath:
    if path.part in (RecordPart.BEFORE, RecordPart.AFTER):
        return path
    raise field_path_error("it must be in .Payload.Before or .Payload.After")


_DATA = (RecordPart.KEY, RecordPart.BEFORE, RecordPart.AFTER)

Settable: TypeAlias = Annotated[FieldPath, AfterValidator(_settable)]
"""What a processor may set: everything but the position and the record itself."""
Removable: TypeAlias = Annotated[FieldPath, AfterValidator(_removable)]
"""What a record can be without."""
Encodable: TypeAlias = Annotated[FieldPath, AfterValidator(_encodable)]
"""What may hold text or bytes: key, payload, a field of them, a field of the metadata."""
Structurable: TypeAlias = Annotated[FieldPath, AfterValidator(_structurable)]
"""What may hold structured data: key, payload, a field of them."""
Inner: TypeAlias = Annotated[FieldPath, AfterValidator(_inner)]
"""A field of structured data."""
InPayload: TypeAlias = Annotated[FieldPath, AfterValidator(_in_payload)]
"""One side of the payload, or a field of it."""
