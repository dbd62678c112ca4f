"""`unwrap.kafkaconnect` unpacks what Kafka Connect's JSON converter writes."""

from typing import TypedDict, Unpack

from pydantic import Field

from conduit_processors.field_processor import InPayload
from conduit_processors.unwrap.envelope import open_envelope, unwrap_key
from conduit_py.sdk import Operation, Options, Payload, Processor, Record, RecordRefused
from conduit_py.sdk.template import FieldPath, kind_of


class KafkaConnectOptions(Options):
    """Options of unwrap.kafkaconnect."""

    field: InPayload = Field(
        default=FieldPath.of(".Payload.After"), description="where the envelope is: structured data or its JSON"
    )


class KafkaConnectArguments(TypedDict, total=False):
    """KafkaConnectOptions as a caller writes them, for editors and type checkers."""

    field: str | FieldPath


class KafkaConnect(Processor[KafkaConnectOptions]):
    """Turns `{"schema": …, "payload": {…}}` into a record that creates the payload.

    A key in such an envelope is unpacked too. Position and metadata stay.
    """

    blocking = False
    gives = dict
    _field: FieldPath

    def __init__(self, **options: Unpack[KafkaConnectArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._field = self.options.field

    def process(self, record: Record) -> Record:
        after = open_envelope(self._field, record).get("payload")
        if not isinstance(after, dict):
            raise RecordRefused(f'{self._field}: the envelope needs an object "payload"; it is {kind_of(after)}')
        return Record(record.position, Operation.CREATE, record.metadata, unwrap_key(record.key), Payload(None, after))
