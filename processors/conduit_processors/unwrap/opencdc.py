"""`unwrap.opencdc` unpacks a whole record that travelled in a field of another."""

from typing import TypedDict, Unpack

from pydantic import Field

from conduit_processors.field_processor import Structurable
from conduit_processors.unwrap.envelope import open_envelope
from conduit_py.sdk import Options, Processor, Record, RecordRefused
from conduit_py.sdk.template import FieldPath

REQUIRED = ("operation", "metadata", "payload")


class OpenCDCOptions(Options):
    """Options of unwrap.opencdc."""

    field: Structurable = Field(
        default=FieldPath.of(".Payload.After"), description="where the record is: structured data or its JSON"
    )


class OpenCDCArguments(TypedDict, total=False):
    """OpenCDCOptions as a caller writes them, for editors and type checkers."""

    field: str | FieldPath


class OpenCDC(Processor[OpenCDCOptions]):
    """Replaces the record by the one in the field, written in Conduit's JSON form, except for its position."""

    blocking = False
    _field: FieldPath

    def __init__(self, **options: Unpack[OpenCDCArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._field = self.options.field

    def process(self, record: Record) -> Record:
        envelope = open_envelope(self._field, record)
        missing = [name for name in REQUIRED if envelope.get(name) is None]
        if missing:
            raise RecordRefused(f"{self._field}: not an OpenCDC record: it has no {', '.join(missing)}")
        try:
            inner = Record.from_map({name: value for name, value in envelope.items() if name != "position"})
        except RecordRefused as refused:
            raise RecordRefused(f"{self._field}: not an OpenCDC record: {refused.message}") from refused
        inner.position = record.position
        return inner
