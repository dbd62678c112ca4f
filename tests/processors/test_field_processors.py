"""field.exclude, field.rename and field.set."""

from collections.abc import Callable
from typing import Any

import pytest
from conduit_processors.field import Exclude, Rename, Set
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Operation, Payload, Record, RecordRefused

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]


def record() -> Record:
    return Record(
        metadata={"m": "1", "n": "2"},
        key={"id": 7},
        payload=Payload(b"raw", {"a": {"b": 1, "c": 2}, "d": 3, "odd, key": 4}),
    )


@pytest.mark.parametrize(
    "fields",
    [
        ["a.b", ".Metadata.m", 'payload.after["odd, key"]'],
        '.Payload.After.a.b, metadata.m,payload.after["odd, key"]',
    ],
)
def test_exclude_takes_a_list_or_text(run: Run, fields: Any) -> None:
    result = run(Exclude(fields=fields), record())

    assert result.payload.after == {"a": {"c": 2}, "d": 3}
    assert result.metadata == {"n": "2"}


def test_exclude_makes_wholes_absent(run: Run) -> None:
    result = run(Exclude(fields=".Key,.Metadata,.Payload.Before,d"), record())

    assert result == Record.of({"a": {"b": 1, "c": 2}, "odd, key": 4})


def test_exclude_leaves_a_record_without_the_fields_alone(run: Run) -> None:
    assert run(Exclude(fields=["x", "a.x.y", "metadata.x"]), record()) == record()
    assert run(Exclude(fields=["x.y"]), Record()) == Record()


def test_exclude_refuses_to_leave_a_field_hidden_in_raw_bytes(refusal: Refusal) -> None:
    refused = refusal(Exclude(fields=["d", ".Payload.Before.secret"]), record())

    assert refused.message == (
        "cannot delete .Payload.Before.secret: .Payload.Before is raw bytes, so it has no fields"
    )
    assert refused.suggestion == (
        'decode it first, for example with conduit_processors.json.Decode(field=".Payload.Before")'
    )


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ([], ["fields"]),
        ("", ["fields.0"]),
        ("a,.Position,.Nope", ["fields.1", "fields.2"]),
        (".Operation", ["fields.0"]),
    ],
)
def test_exclude_reports_every_problem(fields: Any, paths: list[str]) -> None:
    assert [problem.path for problem in Exclude(fields=fields).problems] == paths


@pytest.mark.parametrize(
    "mapping",
    [
        {"a.b": "B", "d": "D", ".Metadata.m": "x.y", ".Key.id": "ID"},
        ".Payload.After.a.b:B, d:D,metadata.m:x.y ,.Key.id:ID",
    ],
)
def test_rename_takes_a_dict_or_text(run: Run, mapping: Any) -> None:
    result = run(Rename(mapping=mapping), record())

    assert result.payload.after == {"a": {"B": 1, "c": 2}, "D": 3, "odd, key": 4}
    assert list(result.payload) == ["a", "D", "odd, key"]
    assert (result.metadata, result.key) == ({"x.y": "1", "n": "2"}, {"ID": 7})


def test_rename_takes_quoted_names_in_text(run: Run) -> None:
    result = run(Rename(mapping='.Payload.After["odd, key"]:even'), record())

    assert result.payload["even"] == 4


def test_renamed_fields_can_swap_names_and_move_with_their_parent(run: Run) -> None:
    result = run(Rename(mapping={"a": "A", "a.b": "c", "a.c": "b"}), record())

    assert result.payload.after == {"A": {"c": 1, "b": 2}, "d": 3, "odd, key": 4}


FIELDS = st.dictionaries(st.text(min_size=1), st.integers(), min_size=1, max_size=5)


@given(FIELDS, st.data())
def test_renaming_back_gives_the_record_back(fields: dict[str, int], data: st.DataObject) -> None:
    old = data.draw(st.sampled_from(sorted(fields)))
    new = data.draw(st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True).filter(lambda name: name not in fields))
    there = Rename(mapping={_under_after(old): new})
    back = Rename(mapping={_under_after(new): old}) if not old.startswith(".") and old.strip() else None
    there.open()

    renamed = there.process(Record.of(dict(fields)))

    assert renamed.payload.after == {new if name == old else name: value for name, value in fields.items()}
    if back is not None:
        back.open()
        restored = back.process(renamed).payload.after
        assert isinstance(restored, dict)
        assert list(restored.items()) == list(fields.items())


def _under_after(name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'.Payload.After["{quoted}"]'


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"d": "e", "x": "y"}, "cannot rename .Payload.After.x: the record has no such field"),
        ({"d": "a"}, "cannot rename .Payload.After.d to 'a': .Payload.After has a field of that name"),
        ({".Metadata.m": "n"}, "cannot rename .Metadata.m to 'n': .Metadata has a field of that name"),
        ({"d": "e", ".Payload.Before.x": "y"}, "cannot rename fields of .Payload.Before: it is raw bytes"),
        ({"x.y": "z"}, "the record has no .Payload.After.x: .Payload.After has no field 'x'"),
        ({"d.x": "y"}, "cannot rename fields of .Payload.After.d: it is a number"),
    ],
)
def test_rename_refuses_what_it_cannot_do_whole(refusal: Refusal, mapping: Any, message: str) -> None:
    assert refusal(Rename(mapping=mapping), record()).message == message


@pytest.mark.parametrize(
    ("mapping", "path", "message"),
    [
        ({}, "mapping", "must be a dict of field paths and new names, or a text such as .Payload.After.old:new"),
        (5, "mapping", "must be a dict of field paths and new names, or a text such as .Payload.After.old:new, not 5"),
        ("a", "mapping", "must be pairs such as .Payload.After.old:new, with commas between them, not 'a'"),
        ("a:b:c", "mapping", "must be pairs such as .Payload.After.old:new, with commas between them, not 'a:b:c'"),
        ("a:b,a:c", "mapping", "must give each field one new name, not 'a:b,a:c'"),
        ({"a": "b", ".Payload.After.a": "c"}, "mapping", "must give each field one new name"),
        ({"a": "x", "b": "x"}, "mapping", "must give each field a name of its own (two become .Payload.After.x)"),
        ({"a": " "}, "mapping.a", "must be a name, not ' '"),
        ({"a": ".Key.b"}, "mapping.a", "must be the new name alone, as in .Payload.After.old:new, not '.Key.b'"),
        (
            {".Key": "k"},
            "mapping..Key",
            "must be a field path such as .Payload.After.name "
            "(the parts of a record keep their names; rename a field inside one), not '.Key'",
        ),
    ],
)
def test_rename_reports_a_wrong_mapping(mapping: Any, path: str, message: str) -> None:
    [problem] = Rename(mapping=mapping).problems

    assert (problem.path, problem.message) == (path, message)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("status", "done", {"status": "done"}),
        ("status", 5, {"status": 5}),
        ("status", None, {"status": None}),
        ("deep.er", [1], {"deep": {"er": [1]}}),
        ("copy", "{{ .Payload.After.id }}", {"copy": "7"}),
        ("copy", lambda record: record.payload["id"] + 1, {"copy": 8}),
        ("id", "{{ .Payload.After.id }}-{{ .Metadata.m }}", {"id": "7-x"}),
        ("copy", "{{ .Metadata.m | upper }}", {"copy": "X"}),
        ("copy", "{{ if eq .Payload.After.id 7 }}seven{{ else }}other{{ end }}", {"copy": "seven"}),
        ("copy", '{{ .Payload.After.missing | default "none" }}', {"copy": "none"}),
    ],
)
def test_set_gives_a_field_a_value(run: Run, field: str, value: Any, read: dict[str, Any]) -> None:
    given = Record(metadata={"m": "x"}, payload=Payload(None, {"id": 7}))

    assert run(Set(field=field, value=value), given).payload.after == {"id": 7} | read


def test_set_reaches_every_part_but_the_position(run: Run) -> None:
    given = Record.of({"id": 7}, position=b"p")
    run(Set(field=".Key", value="{{ .Payload.After.id }}"), given)
    run(Set(field=".Operation", value="delete"), given)
    run(Set(field=".Metadata.m", value="{{ .Operation }}"), given)
    run(Set(field=".Payload.Before", value={"old": 1}), given)

    assert given == Record(b"p", Operation.DELETE, {"m": "delete"}, b"7", Payload({"old": 1}, {"id": 7}))


def test_every_record_gets_a_constant_of_its_own() -> None:
    constant = {"list": [1]}
    setter = Set(field="x", value=constant)
    setter.open()

    first, second = setter.process(Record.of({})), setter.process(Record.of({}))
    first.payload["x"]["list"].append(2)

    assert second.payload["x"] == {"list": [1]}
    assert constant == {"list": [1]}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "raw.x",
            1,
            "cannot set .Payload.After.raw.x: .Payload.After.raw is raw bytes, so it has no fields",
        ),
        ("x", "{{ .Key.id }}", "cannot read .Key.id: .Key is absent, so it has no fields"),
        (
            ".Metadata.m",
            lambda record: 5,
            "cannot set .Metadata.m: metadata holds text and the value is a number",
        ),
        (
            ".Operation",
            "{{ .Payload.After.raw }}",
            "cannot set .Operation: it must be one of create, update, delete, snapshot, not 'b'",
        ),
    ],
)
def test_set_refuses_what_does_not_fit(refusal: Refusal, field: str, value: Any, message: str) -> None:
    assert refusal(Set(field=field, value=value), Record.of({"raw": b"b"})).message == message


async def _async_value(record: Record) -> int:
    return 5


@pytest.mark.parametrize(
    ("field", "value", "path", "message"),
    [
        (
            ".Position",
            1,
            "field",
            "must be a field path such as .Payload.After.name "
            "(.Position belongs to the source and never changes), not '.Position'",
        ),
        (
            ".Payload",
            "x",
            "field",
            "must be a field path such as .Payload.After.name "
            "(choose .Payload.Before or .Payload.After), not '.Payload'",
        ),
        (
            ".Metadata.m",
            5,
            "value",
            "must be what .Metadata.m can hold "
            "(cannot set .Metadata.m: metadata holds text and the value is a number), not 5",
        ),
        (
            "x",
            "{{ uper .Key }}",
            "value",
            "must be a template (there is no function 'uper', at character 4), not '{{ uper .Key }}'",
        ),
        ("x", _async_value, "value", "must not be an async function; write a processor for that"),
    ],
)
def test_set_reports_problems_before_anything_runs(field: str, value: Any, path: str, message: str) -> None:
    [problem] = Set(field=field, value=value).problems

    assert (problem.path, problem.message) == (path, message)
