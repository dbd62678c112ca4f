"""Types of Avro that hold others, or have a name: arrays, maps, enums and fixed."""

from typing import Any, Final

from conduit_processors.avro.values import (
    VALUES_PER_BYTE_MAX,
    AvroType,
    Malformed,
    Misfit,
    append_long,
    read_long,
    read_string,
    write_string,
    wrong_type,
)
from conduit_processors.registry.client import SchemaUnusable

SIZED: Final = 1 - VALUES_PER_BYTE_MAX
"""The excess of one value that takes a byte at least."""


def array_type(items: AvroType) -> AvroType:
    """Return the type of lists, whose items are read until a count of zero."""
    read_item, write_item = items.read, items.write

    def read_array(data: bytes, position: int) -> tuple[Any, int]:
        found: list[Any] = []
        append = found.append
        while True:
            count, position = _read_count(data, position)
            if not count:
                return found, position
            for _ in range(count):
                item, position = read_item(data, position)
                append(item)

    def write_array(value: Any, out: bytearray) -> None:
        if not isinstance(value, list | tuple):
            raise wrong_type(value, "a list")
        if value:
            append_long(len(value), out)
            for number, item in enumerate(value):
                try:
                    write_item(item, out)
                except Misfit as misfit:
                    misfit.path.append(str(number))
                    raise
        out.append(0)

    return AvroType("array", read_array, write_array, SIZED, (list, tuple))


def map_type(entries: AvroType) -> AvroType:
    """Return the type of maps. A key that is there twice is refused: one of its values would be lost."""
    read_value, write_value = entries.read, entries.write

    def read_map(data: bytes, position: int) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        while True:
            count, position = _read_count(data, position)
            if not count:
                return found, position
            for _ in range(count):
                key, position = read_string(data, position)
                if key in found:
                    raise Malformed(f"has the key {key[:100]!r} twice")
                found[key], position = read_value(data, position)

    def write_map(value: Any, out: bytearray) -> None:
        if not isinstance(value, dict):
            raise wrong_type(value, "a map")
        if value:
            append_long(len(value), out)
            for key, item in value.items():
                write_string(key, out)
                try:
                    write_value(item, out)
                except Misfit as misfit:
                    misfit.path.append(key)
                    raise
        out.append(0)

    return AvroType("map", read_map, write_map, SIZED, (dict,))


def _read_count(data: bytes, position: int) -> tuple[int, int]:
    count, position = read_long(data, position)
    if count < 0:
        size, position = read_long(data, position)
        if not 0 <= size <= len(data) - position:
            raise Malformed(f"says that it has {size} bytes, and {len(data) - position} are left")
        count = -count
    # Each takes a byte at least, so a number that lies is found before anything is made for it.
    if count > len(data) - position:
        raise Malformed(f"says that it has {count} values, and {len(data) - position} bytes are left")
    return count, position


def enum_type(schema: Any) -> AvroType:
    """Return the type of names out of a list, written as their places in it."""
    symbols = tuple(schema["symbols"])
    indexes = {symbol: index for index, symbol in enumerate(symbols)}

    def read_enum(data: bytes, position: int) -> tuple[Any, int]:
        index, position = read_long(data, position)
        if not 0 <= index < len(symbols):
            raise Malformed(f"is symbol {index} of an enum of {len(symbols)}")
        return symbols[index], position

    def write_enum(value: Any, out: bytearray) -> None:
        index = indexes.get(value) if isinstance(value, str) else None
        if index is None:
            raise Misfit(f"is not one of the symbols {', '.join(symbols)[:200]}")
        append_long(index, out)

    return AvroType(schema["name"], read_enum, write_enum, SIZED, (str,))


def fixed_type(name: str, size: Any) -> AvroType:
    """Return the type of bytes of one length. Raises SchemaUnusable if the length is none."""
    if type(size) is not int or size < 0:
        raise SchemaUnusable(f"the fixed {name[:100]!r} has no size")

    def read_fixed(data: bytes, position: int) -> tuple[Any, int]:
        end = position + size
        if end > len(data):
            raise Malformed(f"is cut: it has {len(data) - position} of {size} bytes")
        return data[position:end], end

    def write_fixed(value: Any, out: bytearray) -> None:
        if not isinstance(value, bytes) or len(value) != size:
            raise wrong_type(value, f"{size} bytes")
        out += value

    return AvroType(name, read_fixed, write_fixed, 1 - VALUES_PER_BYTE_MAX * size, (bytes,))
