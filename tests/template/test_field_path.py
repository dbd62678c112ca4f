"""Field paths: what they read, change, set and delete in a record."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Operation, Payload, Record, RecordRefused
from conduit_py.sdk.template import FieldPath, RecordPart


def record() -> Record:
    return Record(
        position=b"p",
        operation=Operation.UPDATE,
        metadata={"tenant": "t"},
        key={"id": 1},
        payload=Payload(before=b"raw", after={"a": {"b": 2}, "null": None, "text": "abc", "list": [1]}),
    )


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (".", record()),
        (".Position", b"p"),
        (".Operation", Operation.UPDATE),
        (".Metadata", {"tenant": "t"}),
        (".Metadata.tenant", "t"),
        (".Key", {"id": 1}),
        (".Key.id", 1),
        (".Payload", record().payload),
        (".Payload.Before", b"raw"),
        (".Payload.After.a.b", 2),
        ("null", None),
    ],
)
def test_get_reads_any_place(written: str, value: object) -> None:
    assert FieldPath.of(written).get(record()) == value


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("x", "the record has no .Payload.After.x: .Payload.After has no field 'x'"),
        ("a.x", "the record has no .Payload.After.a.x: .Payload.After.a has no field 'x'"),
        ("metadata.x", "the record has no .Metadata.x: .Metadata has no field 'x'"),
        ("null.x", "cannot read .Payload.After.null.x: .Payload.After.null is absent, so it has no fields"),
        ("list.x", "cannot read .Payload.After.list.x: .Payload.After.list is a list, so it has no fields"),
        ("a.b.c", "cannot read .Payload.After.a.b.c: .Payload.After.a.b is a number, so it has no fields"),
        (".Payload.Before.x", "cannot read .Payload.Before.x: .Payload.Before is raw bytes, so it has no fields"),
    ],
)
def test_get_and_update_refuse_a_record_without_the_field(written: str, message: str) -> None:
    path = FieldPath.of(written)

    with pytest.raises(RecordRefused) as got:
        path.get(record())
    with pytest.raises(RecordRefused) as updated:
        path.update(record(), lambda value: value)

    assert (got.value.message, updated.value.message) == (message, message)


def test_what_is_inside_raw_bytes_or_text_can_be_decoded_first() -> None:
    with pytest.raises(RecordRefused) as raw:
        FieldPath.of(".Payload.Before.x").get(record())
    with pytest.raises(RecordRefused) as text:
        FieldPath.of("text.x").set(record(), 1)

    assert raw.value.suggestion == (
        'decode it first, for example with conduit_processors.json.Decode(field=".Payload.Before")'
    )
    assert text.value.suggestion == (
        'decode it first, for example with conduit_processors.json.Decode(field=".Payload.After.text")'
    )


@pytest.mark.parametrize(
    ("written", "value", "read"),
    [
        (".Operation", "delete", Operation.DELETE),
        (".Metadata", {"a": "b"}, {"a": "b"}),
        (".Metadata", None, {}),
        (".Metadata.new", "text", "text"),
        (".Key", "text", b"text"),
        (".Key", {"a": 1}, {"a": 1}),
        (".Key.new.deep", 5, 5),
        (".Payload.Before", None, None),
        (".Payload.After", b"raw", b"raw"),
        ("a.b", [1], [1]),
        ("new.deep.er", 5, 5),
        ("null.deep", 5, 5),
    ],
)
def test_set_changes_any_place_and_makes_what_is_missing(written: str, value: object, read: object) -> None:
    changed = record()

    FieldPath.of(written).set(changed, value)

    assert FieldPath.of(written).get(changed) == read


def test_set_under_an_absent_payload_makes_structured_data() -> None:
    changed = Record()

    FieldPath.of("a.b").set(changed, 1)

    assert changed == Record.of({"a": {"b": 1}})


def test_setting_metadata_to_nothing_removes_it() -> None:
    changed = record()

    FieldPath.of("metadata.tenant").set(changed, None)

    assert changed.metadata == {}


@pytest.mark.parametrize(
    ("written", "value", "message"),
    [
        (".", Record(), ". cannot be set"),
        (".Position", b"x", ".Position cannot be set"),
        (".Payload", Payload(), ".Payload cannot be set"),
        (
            ".Operation",
            "nope",
            "cannot set .Operation: it must be one of create, update, delete, snapshot, not 'nope'",
        ),
        (".Metadata", {"a": 1}, "cannot set .Metadata: it maps text to text"),
        (
            '.Metadata["a b"]',
            b"x",
            'cannot set .Metadata["a b"]: metadata holds text and the value is raw bytes',
        ),
        (".Key", 5, "cannot set .Key: it holds raw bytes or structured data and the value is a number"),
        (
            ".Payload.After",
            [1],
            "cannot set .Payload.After: it holds raw bytes or structured data and the value is a list",
        ),
        (
            ".Payload.Before.x",
            1,
            "cannot set .Payload.Before.x: .Payload.Before is raw bytes, so it has no fields",
        ),
        ("list.x", 1, "cannot set .Payload.After.list.x: .Payload.After.list is a list, so it has no fields"),
        (
            "text.x.y",
            1,
            "cannot set .Payload.After.text.x.y: .Payload.After.text is text, so it has no fields",
        ),
    ],
)
def test_set_refuses_what_does_not_fit_and_changes_nothing(written: str, value: object, message: str) -> None:
    changed = record()

    with pytest.raises(RecordRefused) as caught:
        FieldPath.of(written).set(changed, value)

    assert caught.value.message == message
    assert changed == record()


def test_text_that_is_no_unicode_cannot_become_raw_bytes() -> None:
    with pytest.raises(RecordRefused, match=r"cannot set \.Key: the text is not valid Unicode"):
        FieldPath.of(".Key").set(record(), "\ud800")


def test_update_puts_the_new_value_in_the_old_ones_place() -> None:
    changed = record()
    for written in ("key.id", "a.b", "metadata.tenant", ".Payload.Before"):
        FieldPath.of(written).update(changed, lambda value: value * 2)

    assert changed.key == {"id": 2}
    assert changed.payload["a"] == {"b": 4}
    assert changed.metadata == {"tenant": "tt"}
    assert changed.payload.before == b"rawraw"


def test_an_error_of_the_change_is_not_taken_for_a_missing_field() -> None:
    def change(value: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        FieldPath.of("a.b").update(record(), change)


def test_delete_removes_and_leaves_absent_fields_alone() -> None:
    changed = record()
    for written in ("a.b", "a.x", "x.y.z", "null.x", "metadata.tenant", "metadata.x", ".Key", "text"):
        FieldPath.of(written).delete(changed)

    assert changed.payload.after == {"a": {}, "null": None, "list": [1]}
    assert (changed.metadata, changed.key) == ({}, None)


def test_delete_of_the_whole_payload_leaves_both_sides_absent() -> None:
    changed = record()

    FieldPath.of(".Payload").delete(changed)

    assert changed.payload == Payload()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            ".Payload.Before.x",
            "cannot delete .Payload.Before.x: .Payload.Before is raw bytes, so it has no fields",
        ),
        ("list.x", "cannot delete .Payload.After.list.x: .Payload.After.list is a list, so it has no fields"),
        (".Position", ".Position cannot be deleted"),
        (".Operation", ".Operation cannot be deleted"),
        (".", ". cannot be deleted"),
    ],
)
def test_delete_refuses_what_it_cannot_remove(written: str, message: str) -> None:
    with pytest.raises(RecordRefused) as caught:
        FieldPath.of(written).delete(record())

    assert caught.value.message == message


@given(st.lists(st.text(max_size=8), min_size=1, max_size=3), st.integers())
def test_what_is_set_is_read_and_what_is_deleted_is_gone(names: list[str], value: int) -> None:
    path = FieldPath(RecordPart.AFTER, tuple(names))
    changed = Record.of({})

    path.set(changed, value)

    assert path.get(changed) == value
    path.delete(changed)
    with pytest.raises(RecordRefused):
        path.get(changed)
