"""schema.validate: what fits passes; what drifts stops, is refused, passes with a mark, or changes the schema."""

import datetime as dt
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from builders import batch_of
from conduit_processors import schema
from conduit_processors.jsonschema.guard import REFERENCES_PER_VALUE_MAX, GuardedValidator
from conduit_processors.registry.client import SchemaUnusable
from conduit_processors.schema.quick_check import quick_check
from conduit_processors.schema.shape import shape_of_value
from conduit_processors.schema.validate import CHANGES_MAX
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.sdk import CollectionSchema, FatalError, Record, RecordRefused, SchemaField

JSON = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "at": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
AVRO = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "parent", "type": ["null", "order"], "default": None},
    ],
}
ORDER = {"id": 1, "total": Decimal("1.50"), "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}


def opened(**options: Any) -> schema.Validate:
    processor = schema.Validate(**options)
    assert processor.problems == []
    fresh = processor.fresh()
    fresh.open()
    return fresh


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(JSON))
    return path


@pytest.fixture
def avro_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(AVRO))
    return path


def messages(results: Any) -> list[str | None]:
    return [each.message if isinstance(each, RecordRefused) else None for each in results]


def test_records_that_fit_a_json_schema_pass_and_others_are_refused_with_what_drifted(json_file: Path) -> None:
    validate = opened(schema_file=json_file)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    results = validate.process_batch(
        batch_of({"id": 1, "at": at}, {"name": 7}, {"id": 1, "new": 2, "odd": 3}, None, b"raw", {"id": True})
    )

    begin = ".Payload.After drifts from its schema: "
    assert messages(results) == [
        None,
        f"{begin}the field 'name' is a number and not of the type string; the field 'id' is missing",
        f"{begin}it has the field 'new', which is not in the schema; "
        "it has the field 'odd', which is not in the schema",
        None,
        f"{begin}it is raw bytes and not of the type object",
        f"{begin}the field 'id' is a boolean and not of the type integer",
    ]


def test_an_avro_schema_is_checked_by_the_types_that_records_have(avro_file: Path) -> None:
    validate = opened(schema_file=avro_file)
    wrong: list[Any] = [{"id": 2**31}, {"total": "1.50"}, {"at": "2026"}, {"note": 7}, {"parent": {**ORDER, "id": "x"}}]

    results = validate.process_batch(
        batch_of(ORDER, {**ORDER, "parent": ORDER}, *[{**ORDER, **each} for each in wrong])
    )

    begin = ".Payload.After drifts from its schema: the field"
    assert messages(results) == [
        None,
        None,
        f"{begin} 'id' does not fit 'maximum'",
        f"{begin} 'total' is text and not of the type decimal",
        f"{begin} 'at' is text and not of the type timestamptz",
        f"{begin} 'note' is a number and not of the type null, string",
        f"{begin} 'parent' does not fit 'anyOf'",
    ]


def test_stop_stops_the_pipeline(json_file: Path) -> None:
    validate = opened(schema_file=json_file, on_drift="stop")

    with pytest.raises(FatalError, match="the field 'id' is missing"):
        validate.process_batch(batch_of({}))


def test_pass_marks_the_record_and_changes_nothing_else(json_file: Path) -> None:
    [result] = opened(schema_file=json_file, on_drift="pass").process_batch(batch_of({"id": "7"}))

    assert isinstance(result, Record)
    assert result.payload.after == {"id": "7"}
    assert result.metadata == {"schema.drift": "the field 'id' is text and not of the type integer"}


@pytest.mark.parametrize("file", ["json_file", "avro_file"])
def test_evolve_adds_fields_and_types_and_then_holds_records_to_them(file: str, request: pytest.FixtureRequest) -> None:
    validate = opened(schema_file=request.getfixturevalue(file), on_drift="evolve")
    base = ORDER if file == "avro_file" else {"id": 1}
    without_id = {name: value for name, value in base.items() if name != "id"}
    evolving = [{**base, "new": {"a": [1]}}, {**base, "id": "text"}, without_id, {**base, "new": None}]

    first = validate.process_batch(batch_of(*evolving))
    validate.options.__dict__["on_drift"] = "dead-letter"
    second = validate.process_batch(batch_of(*evolving, {**base, "new": "text"}, {**base, "other": 1}))

    assert messages(first) == [None] * 4
    assert [each is None for each in messages(second)] == [True] * 4 + [False] * 2


def test_what_cannot_evolve_is_refused_and_the_number_of_changes_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"properties": {"n": {"maximum": 9}}, "additionalProperties": False}))
    validate = opened(schema_file=path, on_drift="evolve")

    assert ["'maximum'" in (text or "") for text in messages(validate.process_batch(batch_of({"n": 10})))] == [True]
    results = messages(validate.process_batch(batch_of(*[{f"f{n}": 1} for n in range(CHANGES_MAX + 5)])))
    assert [text is None for text in results] == [True] * CHANGES_MAX + [False] * 5


def test_the_first_records_of_each_collection_are_its_schema() -> None:
    validate = opened(against="inferred", sample_size=2)

    def record(collection: str, after: Any) -> Record:
        return Record(metadata={"opencdc.collection": collection}, payload=Record.of(after).payload)

    sample = [
        record("a", {"n": 1}),
        record("b", {"x": ["t"]}),
        record("a", {"n": None, "m": 2.5}),
        record("b", {"x": []}),
    ]
    later = [{"n": 5}, {"n": 5, "m": 1.0}, {"n": "x"}, {}, {"n": 1, "x": []}]
    results = validate.process_batch(batch_of(*sample, *[record("a", each) for each in later], record("b", {"x": [1]})))

    assert [text is None for text in messages(results)] == [True] * 6 + [False] * 4
    assert "'n' is text and not of the type integer, null" in (messages(results)[6] or "")


def announced(version: str, *fields: SchemaField) -> CollectionSchema:
    return CollectionSchema("orders", version, fields)


def test_a_schema_that_the_source_announces_is_the_first_of_the_run() -> None:
    first = announced(
        "1",
        SchemaField("id", "integer", nullable=False, key=True),
        SchemaField("doc", "json"),
        SchemaField("total", "decimal"),
        SchemaField("old", "string"),
    )
    second = announced("2", *first.fields[:3], SchemaField("new", "string"))
    validate = opened(against="announced")

    def read(schema: CollectionSchema | None, *payloads: Any) -> Any:
        of = {"opencdc.collection": "orders"}
        batch = batch_of(*[Record(metadata=of, payload=Record.of(each).payload) for each in payloads])
        batch.span.schemas = {"orders": schema} if schema else {}
        return messages(validate.process_batch(batch))

    assert read(first, {"id": 1, "doc": [1], "total": Decimal(1)}, {"id": 2, "total": None}) == [None, None]
    begin = ".Payload.After drifts from its schema: "
    assert read(first, {"id": None}) == [f"{begin}the field 'id' is null and not of the type integer"]
    assert read(second, {"id": 1, "new": "x"}) == [
        f"{begin}the field 'old' is gone; it has the field 'new', which is not in the schema"
    ]
    validate = opened(against="announced")
    assert read(None, {"id": 1}) == ["has no schema: its source announces none of 'orders'"]


def test_drift_is_logged_once_for_each_change(json_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    validate = opened(schema_file=json_file)

    with caplog.at_level(logging.WARNING, "conduit_py.schema"):
        validate.process_batch(batch_of(*[{"id": "x"}] * 5, {"id": 1, "a\nb": 2}, {"id": "y"}))

    assert [record.getMessage() for record in caplog.records] == [
        "schema drift (dead-letter) in collection '': the field 'id' is text and not of the type integer",
        "schema drift (dead-letter) in collection '': it has the field 'a\\nb', which is not in the schema",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{nope", "it is no JSON"), ("true", "it is no object"), ('{"type": "nonsense"}', "it is no JSON Schema"),
     ('{"pattern": "(?=x)"}', "is not one of RE2")],
)  # fmt: skip
def test_a_file_that_is_no_schema_stops_the_pipeline_when_it_starts(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)

    with pytest.raises(FatalError, match=message):
        opened(schema_file=path)
    [problem] = schema.Validate(against="inferred", schema_file=path).problems
    assert problem.message == "schema_file goes with against='file', and with nothing else"


class TestTraps:
    def test_a_schema_that_doubles_with_every_reference_ends_soon(self) -> None:
        definitions: dict[str, Any] = {"d0": {"type": "integer"}}
        for n in range(1, 60):
            definitions[f"d{n}"] = {"allOf": [{"$ref": f"#/$defs/d{n - 1}"}, {"$ref": f"#/$defs/d{n - 1}"}]}
        validator = GuardedValidator({"$ref": "#/$defs/d59", "$defs": definitions})

        with pytest.raises(RecordRefused, match=f"more than {REFERENCES_PER_VALUE_MAX} references"):
            validator.errors(1)

    @pytest.mark.parametrize("target", ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "#/nowhere"])
    def test_a_reference_to_elsewhere_is_not_followed(self, target: str) -> None:
        with pytest.raises(RecordRefused, match="cannot be checked: the schema refers to"):
            GuardedValidator({"$ref": target}).errors(1)

    def test_a_schema_that_refers_to_itself_ends(self) -> None:
        with pytest.raises(RecordRefused, match="cannot be checked"):
            GuardedValidator({"$ref": "#"}).errors(1)

    def test_patterns_take_linear_time_wherever_they_are(self) -> None:
        evil, text = "^(a+)+$", "a" * 5000 + "b"
        validator = GuardedValidator(
            {"properties": {"x": {"pattern": evil}}, "patternProperties": {evil: {}}, "additionalProperties": False}
        )

        assert len(validator.errors({"x": text, text: 1})) == 2
        with pytest.raises(SchemaUnusable, match="patternProperties beside unevaluatedProperties"):
            GuardedValidator({"patternProperties": {evil: {}}, "unevaluatedProperties": False})

    def test_many_items_are_compared_in_linear_time(self) -> None:
        items: list[Any] = [{"n": n} for n in range(20_000)]
        validator = GuardedValidator({"uniqueItems": True})

        assert validator.errors(items) == []
        assert len(validator.errors([*items, {"n": 7}])) == 1


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.datetimes()
    | st.binary(max_size=3)
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)


@given(PAYLOADS, PAYLOADS)
def test_the_quick_check_says_yes_only_to_what_fits(first: Any, second: Any) -> None:
    shape = shape_of_value(first)
    fits, validator = quick_check(shape), GuardedValidator(shape, strict=True)

    assert fits(first) or "nan" in repr(first)
    assert not fits(second) or validator.errors(second) == []


@settings(max_examples=60)
@given(st.lists(PAYLOADS, min_size=1, max_size=3), st.lists(PAYLOADS, max_size=4))
def test_a_schema_takes_the_records_it_is_made_of_and_all_that_it_evolved_for(sample: Any, more: Any) -> None:
    validate = opened(against="inferred", sample_size=len(sample), on_drift="evolve")

    assert messages(validate.process_batch(batch_of(*sample, *sample))) == [None] * 2 * len(sample)
    for payload in more:
        # One record may need several changes: a new field is only looked into when it is there.
        for _ in range(10):
            validate.process_batch(batch_of(payload))
    assert messages(validate.process_batch(batch_of(*sample, *more))) == [None] * (len(sample) + len(more))
