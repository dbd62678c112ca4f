"""`jsonschema.encode` writes JSON that fits a schema, with the id of the schema in a registry."""

from typing import Any, ClassVar, Required, Unpack

from conduit_processors.jsonschema.codec import JsonSchemaCodec, load_schema
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from conduit_processors.registry.options import RegistryEncodeArguments, RegistryEncodeOptions
from conduit_processors.registry.processors import Codec, RegistryEncode
from conduit_processors.schema.shape import shape_of_value, with_json_types
from conduit_py.sdk import encode_json


class JsonSchemaEncodeOptions(RegistryEncodeOptions):
    """Options of jsonschema.encode."""


class JsonSchemaEncodeArguments(RegistryEncodeArguments, total=False):
    """JsonSchemaEncodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]


class Encode(RegistryEncode[JsonSchemaEncodeOptions]):
    """Replaces structured data by its JSON, in the wire format of Confluent's registry; what does not fit is refused.

    The name of a record is the `title` of its schema.
    """

    kind = "JSON"
    requires: ClassVar = {"jsonschema": "conduit-dataflow[jsonschema]"}

    def __init__(self, **options: Unpack[JsonSchemaEncodeArguments]) -> None:
        super().__init__(**options)

    def record_name(self, text: str) -> str:
        root = load_schema(text, "the schema")
        title = root.get("title") if isinstance(root, dict) else None
        if not isinstance(title, str):
            raise SchemaUnusable("it has no title, which is the name of its record")
        return title

    def infer(self, value: Any, name: str) -> str:
        shape = with_json_types(shape_of_value(value))
        return encode_json({"$schema": "http://json-schema.org/draft-07/schema#", "title": name, **shape}).decode()

    async def compile(self, schema: RegisteredSchema) -> Codec:
        return JsonSchemaCodec(schema)
