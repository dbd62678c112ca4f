"""A record whose JSON has a key twice in one object is refused wherever records are decoded from JSON."""

import json as stdlib_json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conduit_connectors import file
from conduit_connectors.json_lines import JsonLines
from conduit_connectors.lines import LineEnds, Lines
from conduit_connectors.objects.formats import read_lines
from conduit_processors import json, unwrap
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.record import Record, decode_json
from conduit_py.sdk import RecordRefused, may_repeat_keys

REPEATED = {
    "flat": (b'{"a": 1, "b": 2, "a": 3}', "a"),
    "escaped": (b'{"a": 1, "\\u0061": 2}', "a"),
    "inside an object": (b'{"x": {"k": 1, "k": 2}}', "k"),
    "inside a list": (b'{"x": [1, {"k": 1, "k": 2}]}', "k"),
    "beside texts with colons": (b'{"at": "12:30:00", "n": 1, "n": 2}', "n"),
    "an escaped colon for a lost one": (b'{"n": 1, "n": "\\u003a"}', "n"),
    "an escaped colon in capitals": (b'{"n": 1, "n": "\\u003A"}', "n"),
    "space before the colon": (b'{"n"\t: 1, "n" :2}', "n"),
    "a lost text with colons": (b'{"n": "1:2:3", "n": 2}', "n"),
    "the same value": (b'{"n": 1, "n": 1}', "n"),
    "an empty key": (b'{"": 1, "": 1}', ""),
    "numbers of thousands of digits": (b'{"n": %s, "n": 1}' % (b"9" * 4000), "n"),
}
SOUND = (
    b"{}",
    b"[]",
    b"7",
    b'{"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 2}]}',
    b'{"at": "12:30:00", "url": "http://x:80", "quoted": "say \\"a\\": 1, \\"a\\": 2"}',
    b'{"colon": "\\u003a"}',
    b'{"a": 1, "A": 2, "a ": 3}',
    b'{":": ":", "::": "::"}',
)


@pytest.mark.parametrize(("text", "key"), REPEATED.values(), ids=REPEATED)
def test_a_repeated_key_is_refused_and_named(text: bytes, key: str) -> None:
    for given_text in (text, text.decode()):
        with pytest.raises(RecordRefused) as refused:
            decode_json(given_text)

        assert refused.value.message == f"the key {key!r} is there twice in one object"
    assert decode_json(text, duplicate_keys="last") == stdlib_json.loads(text)


@pytest.mark.parametrize("text", SOUND)
def test_a_text_that_repeats_no_key_is_decoded(text: bytes) -> None:
    assert decode_json(text) == decode_json(text.decode()) == stdlib_json.loads(text)


KEYS = st.text(alphabet='ab:"\\é', max_size=2)
SCALARS = st.none() | st.integers(-9, 9) | st.text(alphabet='a:"\\{} é', max_size=4)


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(KEYS.map(write_text) | KEYS.map(escape_all), st.sampled_from(["", " ", "\t", "\r"]), inner)
    members = st.lists(member, max_size=3)
    return members.map(lambda all: "{" + ", ".join(f"{key}{space}:{value}" for key, space, value in all) + "}")


def write_text(text: str) -> str:
    return stdlib_json.dumps(text, ensure_ascii=False)


def escape_all(text: str) -> str:
    return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'


DOCUMENTS = st.recursive(
    SCALARS.map(lambda value: stdlib_json.dumps(value, ensure_ascii=False)) | KEYS.map(escape_all),
    lambda inner: objects(inner) | st.lists(inner, max_size=3).map(lambda all: f"[{','.join(all)}]"),
    max_leaves=8,
)


def repeats(text: str) -> bool:
    found: list[bool] = []
    stdlib_json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)))
    return any(found)


@given(DOCUMENTS)
def test_exactly_the_texts_with_a_repeated_key_are_refused(text: str) -> None:
    try:
        decoded = decode_json(text.encode())
    except RecordRefused:
        assert repeats(text)
    else:
        assert not repeats(text)
        assert decoded == stdlib_json.loads(text)


@given(st.lists(objects(DOCUMENTS), max_size=4))
def test_the_quick_test_of_many_lines_overlooks_no_repeated_key(lines: list[str]) -> None:
    suspected = may_repeat_keys("\n".join(lines).encode(), [stdlib_json.loads(line) for line in lines])

    assert suspected or not any(map(repeats, lines))


SIMILAR = st.tuples(
    st.sampled_from(["12:30", "x", "\\u003a"]),
    st.sampled_from(['{"k": 1}', '{"k": "a:b", "l": {"m": 2}}', '{"k": 1, "k": ":"}', '"a:b"', '"abc"', "null", "[]"]),
    st.lists(st.sampled_from(['{"s": 1}', '{"s": "u:v"}', '{"s": 1, "s": 2}', '{"s": {"k": 1}}', '"ab"']), max_size=3),
    st.sampled_from(["", ', "n": 1', ', "n": 1, "n": 2']),
).map(lambda parts: f'{{"at": "{parts[0]}", "o": {parts[1]}, "of": [{", ".join(parts[2])}]{parts[3]}}}')


@given(st.lists(st.lists(SIMILAR, min_size=1, max_size=3), min_size=1, max_size=5), st.booleans())
def test_what_was_learned_from_earlier_lines_hides_no_repeated_key(reads: list[list[str]], typed: bool) -> None:
    """Fields with colons in their texts are learned from earlier lines, so that later ones need not be encoded."""
    lines = JsonLines(Nested if typed else None)
    for read in reads:
        texts = [text.encode() + b"\n" for text in read]

        reading = lines.parse(
            Lines(texts, LineEnds(0, list(map(len, texts)), sum(map(len, texts))), {}),
            [b"%d" % n for n in range(len(texts))],
        )

        assert [index in reading.refused for index in range(len(read))] == list(map(repeats, read))


class Nested(msgspec.Struct):
    at: str
    o: Any
    of: list[Any]
    n: int = 0


def test_a_whole_record_with_a_repeated_key_is_refused() -> None:
    with pytest.raises(RecordRefused, match="the key 'n' is there twice in one object"):
        Record.from_json(b'{"payload": {"after": {"n": 1, "n": 2}}}')


BAD_LINES = [b'{"n": 1, "n": 2}', b'{"at": "12:30", "x": {"k": 1, "\\u006b": 2}}']
LINES = [b'{"n": 0}', BAD_LINES[0], b'{"at": "12:31", "x": {"k": 1}}', BAD_LINES[1], b'{"n": 5}']


def test_the_file_source_refuses_lines_that_repeat_a_key(
    tmp_path: Path, read_all: Callable[..., list[Record]], read_refused: Callable[..., list[tuple[Any, str]]]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(LINES))
    source = file.Source(path=path, format="json")

    assert [record.payload.after for record in read_all(source, n=50)] == [
        {"n": 0},
        BAD_LINES[0],
        {"at": "12:31", "x": {"k": 1}},
        BAD_LINES[1],
        {"n": 5},
    ]
    assert read_refused(source) == [
        (BAD_LINES[0], "the key 'n' is there twice in one object"),
        (BAD_LINES[1], "the key 'k' is there twice in one object"),
    ]


@pytest.mark.parametrize("format", ["json", "opencdc"])
def test_the_file_source_takes_the_last_value_if_set_so(
    format: Any, tmp_path: Path, read_all: Callable[..., list[Record]]
) -> None:
    path = tmp_path / "in.jsonl"
    line = b'{"n": 1, "n": 2}'
    path.write_bytes(line if format == "json" else b'{"payload": {"after": %s}}' % line)

    [record] = read_all(file.Source(path=path, format=format, duplicate_keys="last"))

    assert record.payload.after == {"n": 2}


def test_the_file_source_takes_the_option_only_for_json(tmp_path: Path) -> None:
    [problem] = file.Source(path=tmp_path / "in", format="csv", duplicate_keys="last").problems

    assert 'duplicate_keys goes with format="json" or "opencdc"' in problem.message


def test_objects_of_a_queue_are_refused_as_lines_of_a_file_are(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(LINES))

    found = list(read_lines(path.open("rb"), 0, 1000, json=True))

    assert [each.refused for each in found] == [
        None,
        "the key 'n' is there twice in one object",
        None,
        "the key 'k' is there twice in one object",
        None,
    ]


def test_processors_refuse_json_that_repeats_a_key() -> None:
    message = ".Payload.After: the key 'n' is there twice in one object"
    for processor in (json.Decode(field=".Payload.After"), unwrap.OpenCDC(field=".Payload.After")):
        processor.open()

        with pytest.raises(RecordRefused) as refused:
            processor.process(Record.of(b'{"n": 1, "n": 2}'))

        assert refused.value.message == message


def test_json_decode_takes_the_last_value_if_set_so() -> None:
    decode = json.Decode(field=".Payload.After", duplicate_keys="last")
    decode.open()

    assert decode.process(Record.of(b'{"n": 1, "n": 2}')).payload.after == {"n": 2}
