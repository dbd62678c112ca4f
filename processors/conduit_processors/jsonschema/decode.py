"""`jsonschema.decode` reads JSON whose schema is in a registry."""

from typing import ClassVar, Required, Unpack

from conduit_processors.jsonschema.codec import JsonSchemaCodec
from conduit_processors.registry.client import RegisteredSchema
from conduit_processors.registry.options import RegistryArguments, RegistryOptions
from conduit_processors.registry.processors import Codec, RegistryDecode


class JsonSchemaDecodeOptions(RegistryOptions):
    """Options of jsonschema.decode."""


class JsonSchemaDecodeArguments(RegistryArguments, total=False):
    """JsonSchemaDecodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]


class Decode(RegistryDecode[JsonSchemaDecodeOptions]):
    """Replaces raw data with the id of a schema by the value of its JSON, integers of any size exact.

    JSON that does not fit the schema is refused, and so is an object that has a key twice.
    """

    kind = "JSON"
    requires: ClassVar = {"jsonschema": "conduit-dataflow[jsonschema]"}

    def __init__(self, **options: Unpack[JsonSchemaDecodeArguments]) -> None:
        super().__init__(**options)

    async def compile(self, schema: RegisteredSchema) -> Codec:
        return JsonSchemaCodec(schema)
