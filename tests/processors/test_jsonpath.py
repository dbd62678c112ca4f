"""`jsonpath.extract`: values by a path of RFC 9535, in linear time whatever a record brings."""

from typing import Any

import pytest
from conduit_processors.jsonpath import Extract

from conduit_py.sdk import Record, RecordRefused

ORDER = {"items": [{"sku": "pen", "price": 3}, {"sku": "ink", "price": 12}, {"sku": "desk", "price": 200}], "a b": 1}


def extract(payload: Any = ORDER, **options: Any) -> Any:
    processor = Extract(**{"into": "found", **options}).fresh()
    processor.open()
    result = processor.process(Record.of(payload).copy())
    return result if result is None else result.payload.after


@pytest.mark.parametrize(
    ("path", "many", "value"),
    [
        ("$.items[0].sku", False, "pen"),
        ("$['a b']", False, 1),
        ("$.items[-1].price", False, 200),
        ("$.items[?@.price > 10].sku", True, ["ink", "desk"]),
        ("$..price", True, [3, 12, 200]),
        ("$.items[?match(@.sku, 'p.*')].price", True, [3]),
        ("$.items[?search(@.sku, 'n')].sku", True, ["pen", "ink"]),
        ("$.nothing", True, []),
        ("$.items[?length(@.sku) == 4].price", False, 200),
    ],
)
def test_values_are_found(path: str, many: bool, value: Any) -> None:
    assert extract(path=path, many=many)["found"] == value


def test_what_is_found_is_a_copy() -> None:
    found = extract(path="$.items")
    found["found"].append("more")

    assert len(found["items"]) == 3


def test_a_path_without_a_value() -> None:
    missing = {"path": "$.nothing"}

    with pytest.raises(RecordRefused, match=r"\$.nothing: finds nothing"):
        extract(**missing)
    assert extract(**missing, missing="null")["found"] is None
    assert "found" not in extract(**missing, missing="keep")
    assert extract(**missing, missing="drop") is None


def test_several_values_are_refused_unless_they_are_asked_for() -> None:
    with pytest.raises(RecordRefused, match="finds 3 values, and `many` is not set"):
        extract(path="$.items[*].sku")
    with pytest.raises(RecordRefused, match="finds more than 10000 values"):
        extract({"a": list(range(10_001))}, path="$.a[*]", many=True)


def test_it_begins_at_a_field() -> None:
    assert extract({"raw": {"a": [1, 2]}}, path="$.a[1]", field="raw")["found"] == 2
    with pytest.raises(RecordRefused, match="has no paths: it is"):
        extract({"raw": "text"}, path="$.a", field="raw")


def test_a_pattern_takes_linear_time_though_the_record_brings_it() -> None:
    hostile = {"text": "a" * 40 + "!", "pattern": "(a|a)*b", "items": [1]}

    assert extract(hostile, path="$.items[?search($.text, $.pattern)]", many=True)["found"] == []
    assert extract({**hostile, "pattern": "("}, path="$.items[?match($.text, $.pattern)]", many=True)["found"] == []


def test_a_record_nested_too_deeply_is_refused() -> None:
    nested: Any = 1
    for _ in range(400):
        nested = [nested]

    with pytest.raises(RecordRefused):
        extract({"a": nested}, path="$..x", many=True)


@pytest.mark.parametrize("path", ["items", "$.items[", "$.items[?@.a ~ 1]", "$.items[?foo(@)]"])
def test_a_wrong_path_is_a_problem(path: str) -> None:
    [problem] = Extract(path=path, into="found").problems

    assert "must be a JSONPath" in problem.message
