"""Objects of strangers: what they take in memory is bounded, whatever they claim, and what is wrong is reported."""

import gzip
import io
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from conduit_connectors.objects.contents import ContentOptions, RecordChunk, read_content
from hypothesis import given, settings
from hypothesis import strategies as st


class Bytes:
    """The content of an object, of which at most so many bytes are returned at once."""

    def __init__(self, content: bytes, at_once: int = 2**20) -> None:
        self._content = content
        self._at_once = at_once

    def read_at(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + min(size, self._at_once)]

    def close(self) -> None:
        pass


def chunks(name: str, content: bytes, offset: int = 0, at_once: int = 2**20, **options: Any) -> Iterator[RecordChunk]:
    return read_content(name, Bytes(content, at_once), offset, ContentOptions(**options))


def read_all(name: str, content: bytes, offset: int = 0, **options: Any) -> list[tuple[Any, int, str | None]]:
    """Return the values, where each ends, and why it is refused."""
    return [
        (value, end, chunk.refused.get(index))
        for chunk in chunks(name, content, offset, **options)
        for index, (value, end) in enumerate(zip(chunk.values, chunk.ends, strict=True))
    ]


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.jsonl.gz", "bomb.csv.gz"])
def test_a_few_bytes_that_become_many_take_little_memory(name: str) -> None:
    content = gzip.compress(b"n\n" + b"1" * 40_000_000 + b"\n7\n")
    tracemalloc.start()
    found = read_all(name, content, line_size_max=2**20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(content) < 100_000
    assert peak < 12 * 2**20
    assert any("40000000 bytes, more than line_size_max" in (reason or "") for _, _, reason in found)
    assert found[-1][1] == 40_000_005


def test_very_short_rows_are_all_read() -> None:
    # A block has more rows than are taken at once.
    content = b"a\n" + b"1\n" * 524_200
    ends = [end for chunk in chunks("short.csv", content) for end in chunk.ends]

    assert len(ends) == 524_200
    assert ends[-1] == len(content)


def test_an_element_that_is_too_long_is_refused_and_the_others_are_read() -> None:
    long = {"n": [{"text": "x" * 1000}] * 3000}
    content = json.dumps([{"n": 1}, long, {"n": 2}], indent=1).encode()
    found = read_all("a.json", content, line_size_max=100_000)

    assert [value for value, _, reason in found if reason is None] == [{"n": 1}, {"n": 2}]
    assert len(found[1][0]) == 1024
    assert "more than line_size_max" in str(found[1][2])


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    ['x"]}', "\\", "ü,{[", 1, None, [], [{}], {"a": ["]"]}, [[1], {"b": {}}]]
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(['"', "k", "é"]), VALUES), max_size=4), st.booleans(), st.integers(1, 9)
)
def test_an_array_is_cut_into_the_elements_that_a_parser_finds(rows: list[Any], pretty: bool, at_once: int) -> None:
    content = json.dumps(rows, indent=1 if pretty else None, ensure_ascii=False).encode()
    found = [
        (value, end)
        for chunk in chunks("a", content, at_once=at_once, format="json-array")
        for value, end in zip(chunk.values, chunk.ends, strict=True)
    ]

    assert [value for value, _ in found] == rows
    for index, (_, end) in enumerate(found):
        assert [value for value, _, _ in read_all("a", content, end, format="json-array")] == rows[index + 1 :]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[1, 2", "in the middle"),
        (b"[{} {}]", "where a comma belongs"),
        (b"[{},]", "where an element belongs"),
        (b"[{}] x", "behind the end"),
        (b"[,{}]", "where an element belongs"),
        (b'[{"a": "', "in the middle"),
    ],
)
def test_what_is_no_array_is_reported(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_all("a", content, format="json-array")


def avro_file(schema: Any, codec: bytes, count: int, block: bytes, size: int | None = None) -> bytes:
    """An Avro file with one block that may claim anything."""
    file = io.BytesIO()
    file.write(b"Obj\x01")
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec}
    fastavro.schemaless_writer(file, {"type": "map", "values": "bytes"}, meta)
    file.write(b"s" * 16)
    for number in (count, len(block) if size is None else size):
        fastavro.schemaless_writer(file, "long", number)
    return file.getvalue() + block + b"s" * 16


NOTHING = {"type": "record", "name": "r", "fields": []}
TEXT = {"type": "record", "name": "r", "fields": [{"name": "t", "type": "string"}]}
NULLS = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
EMPTY = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "a", "type": {"type": "array", "items": NOTHING | {"name": "e"}}}],
}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (avro_file(TEXT, b"null", 1, b"", size=2**40), "more than line_size_max allows"),
        (avro_file(TEXT, b"null", 1, b"", size=-5), "more than line_size_max allows"),
        (avro_file(TEXT, b"deflate", 1, zlib.compress(b"\0" * 2**25)[2:-4]), "when it is decompressed"),
        (avro_file(NOTHING, b"null", 2**40, b""), "says that it has"),
        (avro_file(NULLS, b"null", 1, b"\xfe\xff\xff\xff\x0f\0"), "take no bytes"),
        (avro_file(EMPTY, b"null", 1, b"\xfe\xff\xff\xff\x0f\0"), "take no bytes"),
        (avro_file(TEXT, b"null", 1, b"\xfe\xff\xff\xff\x0fabc"), "cannot be decoded"),
        (avro_file(TEXT, b"brotli", 1, b"x"), "codec 'brotli' is not known"),
        (avro_file("no such type", b"null", 1, b""), "schema cannot be used"),
        (b"Obj\x01" + b"\x80" * 50, "too long"),
        (b"Obj\x02", "no Avro file"),
    ],
)
def test_avro_that_claims_too_much_is_refused(content: bytes, why: str) -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match=why):
        read_all("a.avro", content, line_size_max=2**20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 20 * 2**20


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_avro_is_read_with_every_codec(codec: str) -> None:
    block = io.BytesIO()
    fastavro.schemaless_writer(block, TEXT, {"t": "x" * 1000})
    if codec in ("zstandard", "snappy"):
        packed = bytes(pa.compress(block.getvalue(), "zstd" if codec == "zstandard" else codec, asbytes=True))
        packed += zlib.crc32(block.getvalue()).to_bytes(4) if codec == "snappy" else b""
        content = avro_file(TEXT, codec.encode(), 1, packed)
    else:
        file = io.BytesIO()
        fastavro.writer(file, TEXT, [{"t": "x" * 1000}], codec=codec)
        content = file.getvalue()

    assert read_all("a.avro", content) == [({"t": "x" * 1000}, 1, None)]
    assert read_all("a.avro", content, 1) == []


def test_a_record_that_has_itself_in_an_array_is_no_bomb() -> None:
    tree = {
        "type": "record",
        "name": "tree",
        "fields": [{"name": "n", "type": "long"}, {"name": "below", "type": {"type": "array", "items": "tree"}}],
    }
    file = io.BytesIO()
    fastavro.writer(file, tree, [{"n": 1, "below": [{"n": 2, "below": []}]}])

    assert read_all("a.avro", file.getvalue())[0][0] == {"n": 1, "below": [{"n": 2, "below": []}]}
