"""JSON lines by the block: what is decoded, refused and left a dict does not depend on the lines beside it."""

import json
from typing import Any

import msgspec
import pytest
from conduit_connectors.json_lines import JsonLines
from conduit_connectors.lines import LineBuffer
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.payload_type import strict_form
from conduit_py.sdk import JSON_DEPTH_MAX, Payloads


class Event(msgspec.Struct):
    at: str
    n: int
    note: str = ""


def parse(parser: JsonLines, lines: list[str]) -> list[tuple[Any, bytes, str | None]]:
    """The payload, the position and the reason of a refusal of every line."""
    buffer = LineBuffer(0, 10_000)
    buffer.feed("".join(f"{line}\n" for line in lines).encode())
    taken = buffer.take(len(lines))
    reading = parser.parse(taken, [b"%d" % end for end in taken.ends])
    assert isinstance(reading.records, Payloads)
    pairs = zip(reading.records.payloads, reading.records.positions, strict=True)
    return [(payload, at, reading.refused.get(index)) for index, (payload, at) in enumerate(pairs)]


TEXTS = st.text(alphabet='a:é"\\', max_size=4)
MEMBERS = st.tuples(st.sampled_from(["at", "n", "note", "a:b"]), TEXTS | st.integers(0, 9) | st.just({"n": 1}))


def written(members: list[tuple[str, Any]], spaces: bool, escaped: bool) -> str:
    colon = " : " if spaces else ":"
    pairs = (f"{json.dumps(name)}{colon}{json.dumps(value, ensure_ascii=escaped)}" for name, value in members)
    text = "{" + ",".join(pairs) + "}"
    return text.replace(":}", "\\u003a}") if escaped else text


LINES = st.one_of(
    st.builds(written, st.lists(MEMBERS, max_size=4), st.booleans(), st.booleans()),
    st.builds(lambda n: f'{{"at":"12:{n}:00","n":{n}}}', st.integers(10, 59)),
    st.sampled_from(["", "[]", "7", "{", "{} {}", '{"n": 1, "n": 2, "at": ""}', '{"at":"1","at":"2","n":1}']),
)


@given(st.lists(st.lists(LINES, max_size=6), max_size=4), st.booleans())
def test_a_line_is_parsed_as_if_it_were_alone(blocks: list[list[str]], typed: bool) -> None:
    kind = strict_form(Event) if typed else None
    parser = JsonLines(kind)
    for block in blocks:
        alone = [each for line in block for each in parse(JsonLines(kind), [line])]

        together = parse(parser, block)

        assert [(payload, why) for payload, _, why in together] == [(payload, why) for payload, _, why in alone]


@given(st.lists(st.lists(LINES, max_size=6), max_size=4), st.booleans())
def test_every_repeated_key_is_refused_and_nothing_else(blocks: list[list[str]], typed: bool) -> None:
    parser = JsonLines(strict_form(Event) if typed else None)
    for block in blocks:
        refused = [why for _, _, why in parse(parser, block) if why is not None and "twice" in why]

        assert len(refused) == sum(map(repeats_a_key, block))


def test_a_colon_of_a_default_does_not_stand_for_a_repeated_key() -> None:
    class Shift(msgspec.Struct):
        n: int
        at: str = "08:00"

    parser = JsonLines(strict_form(Shift))
    assert parse(parser, ['{"n":1,"at":"12:30"}'] * 3)[0][2] is None

    [(_, _, why)] = parse(parser, ['{"n":1,"n":2}'])
    assert why == "the key 'n' is there twice in one object"


def repeats_a_key(line: str) -> bool:
    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len({name for name, _ in pairs}) < len(pairs))
        return dict(pairs)

    found: list[bool] = []
    try:
        json.loads(line, object_pairs_hook=look)
    except ValueError:
        return False
    return any(found)


@pytest.mark.parametrize("typed", [False, True])
def test_times_in_lines_are_learned_and_a_repeated_key_beside_them_is_still_found(typed: bool) -> None:
    parser = JsonLines(strict_form(Event) if typed else None)
    good = [f'{{"at":"2026-11-17T05:{n}:00","n":{n}}}' for n in range(10, 20)]
    assert not any(why for _, _, why in parse(parser, good))

    [*others, (payload, _, why)] = parse(parser, [*good, '{"at":"05:00:00","n":1,"n":2}'])

    assert not any(why for _, _, why in others)
    assert (payload, why) == (b'{"at":"05:00:00","n":1,"n":2}', "the key 'n' is there twice in one object")


def test_a_line_that_fits_is_of_the_type_and_one_that_does_not_is_a_dict() -> None:
    kind = strict_form(Event)
    [(fits, _, _), (other, _, _)] = parse(JsonLines(kind), ['{"at":"a","n":1}', '{"at":"a","n":"b"}'])

    assert isinstance(fits, Event)
    assert fits == Event("a", 1)
    assert other == {"at": "a", "n": "b"}


class Restless(msgspec.Struct):
    n: int
    nothing: float = float("nan")
    note: str = ""

    def __post_init__(self) -> None:
        self.note = self.note or "set by code"


def test_a_field_that_is_set_without_a_member_does_not_hide_a_repeated_key() -> None:
    parser = JsonLines(strict_form(Restless))
    parse(parser, ['{"n":1,"nothing":1.5,"note":"a"}', '{"n":1,"nothing":1.5,"note":"b"}'])

    [(_, _, why)] = parse(parser, ['{"n":1,"n":2}'])

    assert why == "the key 'n' is there twice in one object"


def test_a_field_that_all_lines_had_so_far_may_be_missing_later() -> None:
    parser = JsonLines(strict_form(Event))
    full = [f'{{"at":"12:00","n":{n},"note":"x"}}' for n in range(3)]

    first, again = parse(parser, full), parse(parser, full)
    short = parse(parser, ['{"at":"12:00","n":7}', *full])
    repeated = parse(parser, [*full, '{"at":"12:00","n":7,"note":"x","note":"y"}'])

    assert first == again
    assert msgspec.json.encode([value for value, _, _ in first]) == msgspec.json.encode(
        [value for value, _, _ in again]
    )
    assert {type(value) for value, _, _ in again} != {type(value) for value, _, _ in first}, (
        "decoded into a narrower type"
    )
    assert [value for value, _, _ in short] == [Event("12:00", 7), *(Event("12:00", n, "x") for n in range(3))]
    assert [refused for _, _, refused in repeated[:3]] == [None] * 3
    assert "note" in str(repeated[3][2])


@pytest.mark.parametrize("space", [" ", "\t", "\r"])
@pytest.mark.parametrize("kind", [None, strict_form(Event)])
def test_white_space_before_a_colon_hides_no_repeated_key(space: str, kind: type[msgspec.Struct] | None) -> None:
    # As many colons behind quotes as members that are decoded, but one of them is that of a key that was lost.
    parsed = parse(JsonLines(kind), [f'{{"at"{space}:"","n":1,"n":2}}', '{"at":"","n":3}'])

    assert [reason for _, _, reason in parsed] == ["the key 'n' is there twice in one object", None]


@pytest.mark.parametrize("kind", [None, strict_form(Event)])
def test_an_object_that_spans_lines_is_refused_on_each_of_them(kind: type[msgspec.Struct] | None) -> None:
    parsed = parse(JsonLines(kind), ['{"at":"",', '"n":1}', '{"at":"","n":3}'])

    assert [reason is None for _, _, reason in parsed] == [False, False, True]


@pytest.mark.parametrize("size", [255, 256, 400, 401])
def test_a_line_that_is_too_deep_is_refused_whatever_the_size_of_those_beside_it(size: int) -> None:
    beside = json.dumps({"note": "x" * (size - len('{"note": ""}\n'))})
    deep, too_deep = (f'{{"n":{"[" * lists}{"]" * lists}}}' for lists in (JSON_DEPTH_MAX - 1, JSON_DEPTH_MAX))
    for lines in ([beside, deep, too_deep], [too_deep, beside, deep], [beside, beside, deep]):
        refused = [reason is not None for _, _, reason in parse(JsonLines(), lines)]
        assert refused == [line is too_deep for line in lines]
