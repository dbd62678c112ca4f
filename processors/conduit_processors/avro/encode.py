"""`avro.encode` writes structured data in Avro, with the id of its schema in a registry."""

from typing import Any, ClassVar, Required, Unpack

from conduit_processors.avro.codec import AvroCodec, name_in, parse
from conduit_processors.avro.inference import infer_schema
from conduit_processors.registry.client import RegisteredSchema
from conduit_processors.registry.options import RegistryEncodeArguments, RegistryEncodeOptions
from conduit_processors.registry.processors import Codec, RegistryEncode


class AvroEncodeOptions(RegistryEncodeOptions):
    """Options of avro.encode."""


class AvroEncodeArguments(RegistryEncodeArguments, total=False):
    """AvroEncodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]


class Encode(RegistryEncode[AvroEncodeOptions]):
    """Replaces structured data, or its JSON, by Avro in the wire format of Confluent's registry.

    Nothing is rounded but by the type `float`: a value that its type cannot hold refuses the record, with the field. So
    does a field that the schema does not have. A missing field is written with its default. With
    `strategy="autoRegister"` and no `schema_file` the schema is inferred from each record.
    """

    kind = "AVRO"
    requires: ClassVar = {"fastavro": "conduit-dataflow[avro]"}

    def __init__(self, **options: Unpack[AvroEncodeArguments]) -> None:
        super().__init__(**options)

    def record_name(self, text: str) -> str:
        return name_in(text)

    def infer(self, value: Any, name: str) -> str:
        return infer_schema(value, name)

    async def compile(self, schema: RegisteredSchema) -> Codec:
        return AvroCodec(parse(schema.text, schema.types))
