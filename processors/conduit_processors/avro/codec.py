"""AvroCodec: data of one schema. The schema is compiled once into functions that read and write values.

fastavro parses schemas, and reads data with another schema than it was written with. The data itself is read here:
fastavro takes a negative index of a union, rounds decimals, and recurses without limit in C. Decision 42 has the list.
"""

import io
from typing import Any, Final

import msgspec

from conduit_processors.avro.compiler import Compiler
from conduit_processors.avro.values import AvroType, Malformed, Misfit, reason_of
from conduit_processors.registry.client import SchemaUnusable
from conduit_py.sdk import JSON_DEPTH_MAX, RecordRefused, decode_json

PRIMITIVES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


class ParsedSchema(msgspec.Struct, frozen=True):
    """A schema with full names everywhere, and all its named types."""

    root: Any
    names: dict[str, Any]


def parse(text: str, types: tuple[tuple[str, str], ...] = ()) -> ParsedSchema:
    """Parse a schema, and before it the `types` that it uses. Raises SchemaUnusable with the reason."""
    from fastavro.schema import parse_schema

    names: dict[str, Any] = {}
    try:
        for name, used in types:
            parse_schema(_load(used, name), names)
        return ParsedSchema(parse_schema(_load(text, "the schema"), names), names)
    except SchemaUnusable:
        raise
    except Exception as error:  # fastavro raises many kinds for what is no schema
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise SchemaUnusable(f"it is no Avro schema: {reason[:300]}") from error


def name_in(text: str) -> str:
    """Return the full name of the type in a schema, which may use types that are not there yet."""
    root = _load(text, "the schema")
    name = root.get("name") if isinstance(root, dict) else None
    if not isinstance(name, str):
        raise SchemaUnusable("its type has no name")
    namespace = root.get("namespace")
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and "." not in name else name


def _load(text: str, name: str) -> Any:
    # A primitive type may be written without quotes, as Confluent's registry does.
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return decode_json(text)
    except RecordRefused as refused:
        raise SchemaUnusable(f"{name[:100]}: {refused.message}") from refused


class AvroCodec:
    """Encodes and decodes values of one schema, exactly; with a `reader` schema, decodes into values of that one."""

    def __init__(self, schema: ParsedSchema, reader: ParsedSchema | None = None) -> None:
        compiler = Compiler(schema.names)
        try:
            self.type: AvroType = compiler.compile(schema.root)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # What fastavro lets pass, such as a union of nothing.
            raise SchemaUnusable(f"it is no Avro schema: {type(error).__name__}: {str(error)[:200]}") from error
        self._recursive = compiler.recursive
        self._schema, self._reader = schema, reader
        self.raw = {"string": "text", "bytes": "bytes"}.get(self.type.name)

    def decode(self, data: bytes, start: int) -> Any:
        """Return the value that the data holds from `start` to its end. Raises RecordRefused for other data."""
        try:
            value, end = self.type.read(data, start)
        except Malformed as malformed:
            raise RecordRefused(_located(malformed.path, str(malformed))) from malformed
        except Exception as error:
            reason = reason_of(error)
            if reason is None:
                raise
            raise RecordRefused(reason) from error
        if end != len(data):
            raise RecordRefused(f"has {len(data) - end} bytes after the end of the value")
        if self._recursive and _is_deep(value):
            raise RecordRefused(f"is nested more than {JSON_DEPTH_MAX} deep")
        return value if self._reader is None else self._resolve(data[start:], self._reader)

    def _resolve(self, data: bytes, reader: ParsedSchema) -> Any:
        """Read once more: only data that is sound, and not too deep, comes to fastavro."""
        from fastavro import schemaless_reader

        try:
            return schemaless_reader(io.BytesIO(data), self._schema.root, reader.root)
        except Exception as error:  # fastavro raises many kinds for schemas that do not match
            raise RecordRefused(f"does not match the reader's schema: {error}") from error

    def encode(self, value: Any) -> bytes:
        """Return the encoding of a value. Raises RecordRefused for one that does not fit, with the field."""
        out = bytearray()
        try:
            self.type.write(value, out)
        except Misfit as misfit:
            raise RecordRefused(_located(misfit.path, str(misfit))) from misfit
        except RecursionError:
            raise RecordRefused("is nested too deeply") from None
        return bytes(out)


def _located(path: list[str], reason: str) -> str:
    name = ".".join(reversed(path))
    return f"the field {name[:200]!r} {reason}" if name else reason


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
    return True
