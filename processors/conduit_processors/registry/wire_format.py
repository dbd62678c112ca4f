"""The wire format of Confluent's registry: a zero byte, the id of the schema in four bytes, then the data.

In Protobuf the data begins with the indexes of the message in its file, from the outermost to the innermost.
"""

from typing import Final

from conduit_py.sdk import RecordRefused

HEADER_SIZE: Final = 5
_INDEXES_MAX: Final = 64


def header(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def read_schema_id(data: bytes) -> int:
    """Return the id of the schema. Raises RecordRefused for data in another format."""
    if len(data) < HEADER_SIZE:
        raise RecordRefused(f"has no schema id: it has {len(data)} bytes, and the id takes {HEADER_SIZE}")
    if data[0]:
        raise RecordRefused(
            f"has no schema id: its first byte is 0x{data[0]:02x}, not 0x00",
            suggestion="check that the data was written with a schema registry",
        )
    return int.from_bytes(data[1:HEADER_SIZE], "big")


def encode_indexes(indexes: tuple[int, ...]) -> bytes:
    """Return the indexes of a message; one zero byte stands for the first message of a file."""
    if indexes == (0,):
        return b"\x00"
    encoded = bytearray()
    for number in (len(indexes), *indexes):
        rest = number << 1
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
    return bytes(encoded)


def decode_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message and where they end. Raises RecordRefused for anything else."""
    count, position = _read_index(data, start)
    if count == 0:
        return (0,), position
    if count > _INDEXES_MAX:
        raise RecordRefused(f"has {count} message indexes: at most {_INDEXES_MAX} are read")
    indexes = []
    for _ in range(count):
        index, position = _read_index(data, position)
        indexes.append(index)
    return tuple(indexes), position


def _read_index(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 35:
        if position >= len(data):
            raise RecordRefused("is cut within the message indexes")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number & 1:
                raise RecordRefused("has a negative message index")
            return number >> 1, position
        shift += 7
    raise RecordRefused("has a message index of more than 5 bytes")
