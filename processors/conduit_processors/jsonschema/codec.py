"""JsonSchemaCodec: JSON of one schema, checked in both directions."""

from typing import Any
from urllib.parse import urljoin

from conduit_processors.jsonschema.guard import GuardedValidator
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from conduit_py.sdk import RecordRefused, decode_json, encode_json


class JsonSchemaCodec:
    """Encodes and decodes JSON that fits the schema. The schemas that it uses are found by their names."""

    raw: str | None = None

    def __init__(self, schema: RegisteredSchema) -> None:
        root = load_schema(schema.text, "the schema")
        base = root.get("$id", "") if isinstance(root, dict) else ""
        used = {name: load_schema(text, name) for name, text in schema.types}
        # A reference is written relative to the id of the schema that has it.
        resources = used | {urljoin(base, name): each for name, each in used.items() if isinstance(base, str)}
        self._validator = GuardedValidator(root, resources=resources)

    def decode(self, data: bytes, start: int) -> Any:
        value = decode_json(data[start:])
        self._check(value)
        return value

    def encode(self, value: Any) -> bytes:
        text = encode_json(value)
        # What is written is checked, not the value: a datetime is text there.
        self._check(decode_json(text))
        return text

    def _check(self, value: Any) -> None:
        errors = self._validator.errors(value)
        if errors:
            path = ".".join(map(str, errors[0].absolute_path))
            where = f"the field {path[:200]!r}" if path else "it"
            raise RecordRefused(f"does not fit its schema: {where}: {errors[0].message[:300]}")


def load_schema(text: str, name: str) -> Any:
    """Return the JSON of a schema. Raises SchemaUnusable if it is none."""
    try:
        return decode_json(text)
    except RecordRefused as refused:
        raise SchemaUnusable(f"{name[:100]}: {refused.message}") from refused
