"""Field paths: how they are written."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk.template import FieldPath, RecordPart, split_outside_quotes

DATA = (RecordPart.KEY, RecordPart.BEFORE, RecordPart.AFTER)
NAMES = st.text(max_size=8) | st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
PATHS = st.one_of(
    st.builds(FieldPath, st.sampled_from(DATA), st.lists(NAMES, max_size=4).map(tuple)),
    st.builds(FieldPath, st.just(RecordPart.METADATA), st.lists(NAMES, max_size=1).map(tuple)),
    st.builds(FieldPath, st.sampled_from(list(RecordPart))),
)


@given(PATHS)
def test_a_path_reads_back_as_it_is_written(path: FieldPath) -> None:
    again = FieldPath.of(str(path))

    assert (again.part, again.names) == (path.part, path.names)
    assert again == path
    assert hash(again) == hash(path)


@given(st.text())
def test_any_text_is_a_path_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        path = FieldPath.of(text)
        assert FieldPath.of(str(path)) == path


@pytest.mark.parametrize(
    ("written", "part", "names"),
    [
        (".", RecordPart.RECORD, ()),
        (".Position", RecordPart.POSITION, ()),
        ("operation", RecordPart.OPERATION, ()),
        (".Metadata", RecordPart.METADATA, ()),
        (".Metadata.tenant", RecordPart.METADATA, ("tenant",)),
        ('metadata["opencdc.collection"]', RecordPart.METADATA, ("opencdc.collection",)),
        (".Key", RecordPart.KEY, ()),
        ("key.id", RecordPart.KEY, ("id",)),
        (".Payload", RecordPart.PAYLOAD, ()),
        (".Payload.Before.x", RecordPart.BEFORE, ("x",)),
        (".payload.after", RecordPart.AFTER, ()),
        ("payload.after.a.b", RecordPart.AFTER, ("a", "b")),
        ('.Payload.After.a["odd key"].b', RecordPart.AFTER, ("a", "odd key", "b")),
        (""".Payload.After['it"s']""", RecordPart.AFTER, ('it"s',)),
        (r'.Payload.After["a\"b\\"]', RecordPart.AFTER, ('a"b\\',)),
        ('.Payload["After"].x', RecordPart.AFTER, ("x",)),
        ("amount", RecordPart.AFTER, ("amount",)),
        ("address.city", RecordPart.AFTER, ("address", "city")),
        ("KEY", RecordPart.AFTER, ("KEY",)),
        (" .Key ", RecordPart.KEY, ()),
    ],
)
def test_a_path_can_be_written_in_several_ways(written: str, part: RecordPart, names: tuple[str, ...]) -> None:
    path = FieldPath.of(written)

    assert (path.part, path.names) == (part, names)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "it is empty"),
        (7, "it must be text"),
        (
            ".Nope.x",
            "a record has no .Nope; it has .Key, .Metadata, .Operation, .Payload.After, .Payload.Before, .Position",
        ),
        (".Payload.x", "a payload has .Before and .After; write .Payload.After.x"),
        (".Metadata.a.b", 'metadata is flat: a key with dots in it goes in brackets; write .Metadata["a.b"]'),
        (".Position.x", ".Position has no fields"),
        ("operation.x", ".Operation has no fields"),
        ("a-b", """cannot read '-b'; names other than letters, digits and _ go in ["…"]"""),
        ("a[0]", """cannot read '[0]'; names other than letters, digits and _ go in ["…"]"""),
        ('a["b', """cannot read '["b'; names other than letters, digits and _ go in ["…"]"""),
        ("a..b", """cannot read '..b'; names other than letters, digits and _ go in ["…"]"""),
    ],
)
def test_a_malformed_path_says_what_is_wrong_with_an_example(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        FieldPath.of(written)

    assert str(caught.value) == f"must be a field path such as .Payload.After.name ({reason})"


@given(st.lists(PATHS.map(str), min_size=1, max_size=4))
def test_a_list_in_one_text_has_the_same_paths(written: list[str]) -> None:
    assert split_outside_quotes(" , ".join(written), ",") == written
