"""Compiler: makes a reader and a writer of each type of an Avro schema, and refuses schemas that are traps."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from conduit_processors.avro import values
from conduit_processors.avro.containers import SIZED, array_type, enum_type, fixed_type, map_type
from conduit_processors.avro.values import (
    VALUES_PER_BYTE_MAX,
    AvroType,
    Malformed,
    Misfit,
    Reader,
    Writer,
    append_long,
    read_long,
    reason_of,
    wrong_type,
)
from conduit_processors.registry.client import SchemaUnusable

DEPTH_MAX: Final = 100
_EXCESS_MAX: Final = 1000


class Compiler:
    """Compiles a parsed schema, whose references to named types are full names in `names`."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._done: dict[str, AvroType] = {}
        self._open: dict[str, list[AvroType]] = {}
        self._recursive: set[str] = set()
        self._depth = 0

    def compile(self, schema: Any) -> AvroType:
        """Return the compiled type. Raises SchemaUnusable with the reason."""
        compiled = self._type(schema)
        if compiled.excess > _EXCESS_MAX:
            raise SchemaUnusable("a few bytes of it would be thousands of values")
        return compiled

    @property
    def recursive(self) -> bool:
        """True if a type contains itself, so that values may be nested to any depth."""
        return bool(self._recursive)

    def _type(self, schema: Any) -> AvroType:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SchemaUnusable(f"it is nested more than {DEPTH_MAX} deep")
        try:
            if isinstance(schema, list):
                return self._union(schema)
            if isinstance(schema, str):
                return self._named(schema)
            kind = schema.get("type")
            if not isinstance(kind, str):
                return self._type(kind)
            return self._logical(schema) or self._complex(kind, schema)
        finally:
            self._depth -= 1

    def _named(self, name: str) -> AvroType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name in self._done:
            return self._done[name]
        if name in self._open:
            return self._recursion(name)
        if name not in self._names:
            raise SchemaUnusable(f"it uses the type {name[:100]!r}, which nobody defines")
        return self._type(self._names[name])

    def _recursion(self, name: str) -> AvroType:
        """A type inside of itself: what is compiled later, called with a limit to the depth."""
        self._recursive.add(name)
        cell, depth = self._open[name], 0

        def read(data: bytes, position: int) -> tuple[Any, int]:
            nonlocal depth
            depth += 1
            try:
                if depth > DEPTH_MAX:
                    raise Malformed(f"is nested more than {DEPTH_MAX} deep")
                return cell[0].read(data, position)
            finally:
                depth -= 1

        def write(value: Any, out: bytearray) -> None:
            nonlocal depth
            depth += 1
            try:
                if depth > DEPTH_MAX:
                    raise Misfit(f"is nested more than {DEPTH_MAX} deep")
                cell[0].write(value, out)
            finally:
                depth -= 1

        # No excess: `_record` refuses the schema if that proves wrong.
        return AvroType(name, read, write, 0, (dict,), endless=True)

    def _complex(self, kind: str, schema: Any) -> AvroType:
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "array":
            return array_type(self._elements(schema["items"], 0))
        if kind == "map":
            return map_type(self._elements(schema["values"], VALUES_PER_BYTE_MAX))
        if kind == "enum":
            return self._keep(schema["name"], enum_type(schema))
        if kind == "fixed":
            return self._keep(schema["name"], fixed_type(schema["name"], schema["size"]))
        return self._type(kind)

    def _elements(self, schema: Any, excess_max: int) -> AvroType:
        elements = self._type(schema)
        if elements.excess > excess_max:
            raise SchemaUnusable(f"it has a list of {elements.name[:100]!r}, of which a few bytes could hold millions")
        return elements

    def _keep(self, name: str, compiled: AvroType) -> AvroType:
        self._done[name] = compiled
        return compiled

    def _record(self, schema: Any) -> AvroType:
        name = schema["name"]
        cell = self._open[name] = []
        fields = [(each["name"], self._type(each["type"]), each) for each in schema["fields"]]
        del self._open[name]
        excess = 1 + sum(type.excess for _, type, _ in fields)
        if any(type.endless for _, type, _ in fields):
            raise SchemaUnusable(f"the record {name[:100]!r} contains itself without end")
        if name in self._recursive and excess > 0:
            raise SchemaUnusable(f"the record {name[:100]!r} contains itself, and too many values without bytes")
        read = _record_reader([(field, type.read) for field, type, _ in fields])
        write = _record_writer([(field, type.write, _default(type, each)) for field, type, each in fields])
        cell.append(AvroType(name, read, write, excess, (dict,)))
        return self._keep(name, cell[0])

    def _union(self, branches: list[Any]) -> AvroType:
        compiled = [self._type(branch) for branch in branches]
        reads: list[Reader] = [each.read for each in compiled]
        count = len(reads)

        def read_union(data: bytes, position: int) -> tuple[Any, int]:
            index, position = read_long(data, position)
            if not 0 <= index < count:
                raise Malformed(f"is of type {index} of a union of {count}")
            read: Reader = reads[index]
            return read(data, position)

        excess = max(each.excess for each in compiled) - VALUES_PER_BYTE_MAX
        return AvroType(
            "union", read_union, _union_writer(compiled), excess, endless=all(each.endless for each in compiled)
        )

    def _logical(self, schema: Any) -> AvroType | None:
        """The type with its conversions; None without a logical type, or with one that does not apply here."""
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(kind, schema)
        if logical == "uuid" and kind == "fixed" and schema["size"] == 16:
            below = self._complex(kind, schema)
            return self._keep(
                schema["name"], _converted(below, lambda data: UUID(bytes=data), values.uuid_bytes_of, UUID)
            )
        conversions = _LOGICAL.get((kind, logical)) if isinstance(logical, str) else None
        return None if conversions is None else _converted(_PRIMITIVES[kind], *conversions)

    def _decimal(self, kind: str, schema: Any) -> AvroType | None:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        # As the specification has it, a logical type that is not valid is ignored.
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return None
        if precision > values.DIGITS_MAX:
            raise SchemaUnusable(f"a decimal has a precision of {precision}: at most {values.DIGITS_MAX} is read")
        below = _PRIMITIVES["bytes"] if kind == "bytes" else self._complex(kind, schema)
        size = schema["size"] if kind == "fixed" else None
        converted = _converted(below, *values.decimal_conversions(precision, scale, size), Decimal)
        return converted if kind == "bytes" else self._keep(schema["name"], converted)


def _converted(below: AvroType, convert: values.Conversion, back: values.Conversion, *kinds: type) -> AvroType:
    read_below, write_below = below.read, below.write

    def read(data: bytes, position: int) -> tuple[Any, int]:
        value, position = read_below(data, position)
        return convert(value), position

    def write(value: Any, out: bytearray) -> None:
        write_below(back(value), out)

    # Not called a string or bytes: raw data is no such value by itself.
    return AvroType("converted", read, write, below.excess, kinds)


def _record_reader(fields: list[tuple[str, Reader]]) -> Reader:
    def read_record(data: bytes, position: int) -> tuple[Any, int]:
        record: dict[str, Any] = {}
        name = ""
        try:
            # One `try` around all fields, for speed: the name that was read last is that of the error.
            for name, read in fields:
                record[name], position = read(data, position)
        except Malformed as malformed:
            malformed.path.append(name)
            raise
        except Exception as error:
            reason = reason_of(error)
            if reason is None:
                raise
            located = Malformed(reason)
            located.path.append(name)
            raise located from error
        return record, position

    return read_record


def _record_writer(fields: list[tuple[str, Writer, bytes | None]]) -> Writer:
    names = {name for name, _, _ in fields}

    def write_record(value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise wrong_type(value, "a record")
        name, given = "", 0
        try:
            for name, write, default in fields:
                if name in value:
                    given += 1
                    write(value[name], out)
                elif default is not None:
                    out += default
                else:
                    raise Misfit("is missing")
        except Misfit as misfit:
            misfit.path.append(name)
            raise
        if given != len(value):
            # Refused, not left out: it would be lost silently.
            name = next(each for each in value if each not in names)
            unknown = Misfit("is not in the schema")
            unknown.path.append(str(name))
            raise unknown

    return write_record


def _default(type: AvroType, field: Any) -> bytes | None:
    """The encoding of the default of a field; None without one, and for one that has no value here."""
    if "default" not in field:
        return None
    out = bytearray()
    default = field["default"]
    try:
        # In JSON, a default of bytes is text with a character for each byte.
        type.write(default.encode("latin-1") if type.name == "bytes" and isinstance(default, str) else default, out)
    except (Misfit, UnicodeEncodeError, IndexError):
        return None
    return bytes(out)


def _union_writer(compiled: list[AvroType]) -> Writer:
    def index_of(number: int) -> bytes:
        out = bytearray()
        append_long(number, out)
        return bytes(out)

    branches = [(index_of(number), each) for number, each in enumerate(compiled)]
    # A float of 32 bits comes last, because it rounds.
    branches.sort(key=lambda branch: branch[1].name == "float")
    of_type: dict[type, list[tuple[bytes, AvroType]]] = {}

    def in_order(kind: type) -> list[tuple[bytes, AvroType]]:
        """The types whose values these are come first: an integer is written as a double only if nothing else fits."""
        return sorted(branches, key=lambda branch: kind not in branch[1].kinds)

    def write_union(value: Any, out: bytearray) -> None:
        kind = type(value)
        chosen = of_type.get(kind)
        if chosen is None:
            chosen = in_order(kind)
            # Bounded: a record has values of a few types only.
            of_type[kind] = chosen
        mark, first = len(out), None
        for prefix, branch in chosen:
            out += prefix
            try:
                branch.write(value, out)
                return
            except Misfit as misfit:
                # The best type says most about what is wrong.
                first = first or (misfit if kind in branch.kinds else None)
                del out[mark:]
        raise first or wrong_type(value, f"one of {', '.join(each.name for each in compiled)[:200]}")

    return write_union


_PRIMITIVES: Final = {
    "null": AvroType("null", values.read_null, values.write_null, 1, (type(None),)),
    "boolean": AvroType("boolean", values.read_boolean, values.write_boolean, SIZED, (bool,)),
    "int": AvroType("int", values.read_int, values.integer_writer(32), SIZED, (int,)),
    "long": AvroType("long", values.read_long, values.integer_writer(64), SIZED, (int,)),
    "float": AvroType("float", values.float_reader(values.FLOAT), values.write_float, SIZED, (float,)),
    "double": AvroType("double", values.float_reader(values.DOUBLE), values.write_double, SIZED, (float,)),
    "bytes": AvroType("bytes", values.read_bytes, values.write_bytes, SIZED, (bytes,)),
    "string": AvroType("string", values.read_string, values.write_string, SIZED, (str,)),
}
_MILLIS: Final = timedelta(milliseconds=1)
_MICROS: Final = timedelta(microseconds=1)
_LOGICAL: Final[dict[tuple[str, str], tuple[Any, ...]]] = {
    ("int", "date"): (values.date_of, values.days_of, date),
    ("int", "time-millis"): (*values.time_conversions(_MILLIS), time),
    ("long", "time-micros"): (*values.time_conversions(_MICROS), time),
    ("long", "timestamp-millis"): (*values.timestamp_conversions(_MILLIS, local=False), datetime),
    ("long", "timestamp-micros"): (*values.timestamp_conversions(_MICROS, local=False), datetime),
    ("long", "local-timestamp-millis"): (*values.timestamp_conversions(_MILLIS, local=True), datetime),
    ("long", "local-timestamp-micros"): (*values.timestamp_conversions(_MICROS, local=True), datetime),
    ("string", "uuid"): (UUID, values.uuid_text_of, UUID),
}
