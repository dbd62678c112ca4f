"""An edited record: what was changed is changed, and what was left alone is exactly what it was."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from conduit_py.errors import RecordRefused
from conduit_py.inspect.record_view import apply_edit, view_record
from conduit_py.record import Operation, Payload, Record
from conduit_py.testing.strategies import records

AWKWARD: dict[Any, Any] = {
    "price": Decimal("1.10"),
    "raw": b"\x00\xff",
    "when": datetime(2026, 1, 2, tzinfo=UTC),
    "nan": float("inf"),
    "big": 2**70,
    "pair": (1, b"x"),
    "rows": [{"id": Decimal(1)}, {"id": Decimal(2)}],
    "deep": {"n": 1, "amount": Decimal("2")},
    7: "a name that is no text",
}


def record() -> Record:
    return Record(b"\x01\x02", Operation.UPDATE, {"k": "v"}, b"\xff", Payload(None, dict(AWKWARD)))


def shown(original: Record) -> dict[str, Any]:
    return view_record(original, 10_000_000, lambda text: text.replace("hunter2", "***")).value


def edited(original: Record, **after: Any) -> Record:
    """The record when somebody has changed these fields of what is shown of its payload."""
    display = shown(original)
    changed = {**display, "payload": {**display["payload"], "after": {**display["payload"]["after"], **after}}}
    return apply_edit(original, display, changed)


@given(records())
def test_what_is_given_back_as_it_was_shown_is_the_same_record(original: Record) -> None:
    again = apply_edit(original, shown(original), shown(original))

    assert again.to_map() == original.to_map()


def test_values_that_json_cannot_carry_stay_as_they_are() -> None:
    again = edited(record(), price="9.99")

    assert again.payload.after == AWKWARD | {"price": "9.99"}
    assert (again.position, again.operation, again.key) == (b"\x01\x02", Operation.UPDATE, b"\xff")


def test_changes_deep_inside_leave_their_neighbours_alone() -> None:
    again = edited(record(), deep={"n": 2, "amount": "2"}, rows=[{"id": "1"}, {"id": 5}, {"id": 6}])

    assert again.payload["deep"] == {"n": 2, "amount": Decimal("2")}
    assert again.payload["rows"] == [{"id": Decimal(1)}, {"id": 5}, {"id": 6}]


def test_fields_are_added_and_taken_away() -> None:
    original = record()
    after = shown(original)["payload"]["after"]
    del after["raw"]
    again = apply_edit(original, shown(original), {"payload": {"after": {**after, "new": [1, None]}}})

    assert again.payload.after == {key: value for key, value in AWKWARD.items() if key != "raw"} | {"new": [1, None]}
    assert again.metadata == {"k": "v"}


@pytest.mark.parametrize("value", [True, 1.0])
def test_what_equals_it_but_is_something_else_is_a_change(value: Any) -> None:
    assert type(edited(record(), deep={"n": value, "amount": "2"}).payload["deep"]["n"]) is type(value)


def test_masked_secrets_stay_what_they_are() -> None:
    original = Record.of({"token": "Bearer hunter2", "n": 1})
    again = edited(original, n=2)

    assert shown(original)["payload"]["after"]["token"] == "Bearer ***"
    assert again.payload.after == {"token": "Bearer hunter2", "n": 2}


def test_raw_payloads_and_keys_are_given_in_base64() -> None:
    original = Record(b"1", key=b"old", payload=Payload(None, b"raw"))
    again = apply_edit(
        original, shown(original), {"key": {"id": 1}, "payload": {"after": "bmV3"}, "operation": "delete"}
    )

    assert (again.key, again.payload.after, again.operation) == ({"id": 1}, b"new", Operation.DELETE)


@pytest.mark.parametrize(
    "given_record", [{"payload": []}, {"payload": 0}, {"key": 5}, {"metadata": []}, {"x": 1}, {"position": 0}]
)
def test_what_is_no_record_is_refused(given_record: dict[str, Any]) -> None:
    with pytest.raises(RecordRefused):
        apply_edit(record(), shown(record()), given_record)
