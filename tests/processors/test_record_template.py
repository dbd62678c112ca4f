"""Templates: text with references in it."""

import datetime as dt
from decimal import Decimal
from uuid import UUID

import pytest
from conduit_processors.template import Template
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Operation, Payload, Record, RecordRefused

RULE = "must have only references inside {{ }}, such as {{ .Payload.After.name }}, no functions, pipes or conditions"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (b"bytes", "bytes"),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        (10**30, "1" + "0" * 30),
        (12.5, "12.5"),
        (2.0, "2"),
        (1e21, "1" + "0" * 21),
        (1e-7, "0.0000001"),
        (Decimal("1.50"), "1.50"),
        (dt.datetime(2026, 1, 31, 9, 30, tzinfo=dt.UTC), "2026-01-31T09:30:00Z"),
        (dt.date(2026, 1, 31), "2026-01-31"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ({"a": [1, "x"]}, '{"a":[1,"x"]}'),
        ([None, True], "[null,true]"),
    ],
)
def test_a_value_reads_as_its_text(value: object, text: str) -> None:
    assert Template("<{{ .Payload.After.x }}>").render(Record.of({"x": value})) == f"<{text}>"


def test_several_references_and_text_stand_side_by_side() -> None:
    template = Template('{{.Key}}/{{ .Operation }} {{ .Metadata["a}}b"] }}{{ .payload.after.n }} }} end')
    record = Record(operation=Operation.DELETE, metadata={"a}}b": "m"}, key=b"k", payload=Payload(None, {"n": 1}))

    assert template.render(record) == "k/delete m1 }} end"


def test_a_record_as_a_whole_reads_as_its_json() -> None:
    record = Record.of({"n": 1}, position=b"p")

    assert Template("{{ . }}").render(record).encode() == record.to_json()


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_braces_is_itself(text: str) -> None:
    assert Template(text).render(Record()) == text


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("{{ now }}", "'now' is none"),
        ("{{ amount }}", "'amount' is none"),
        ("{{ if .Key }}x{{ end }}", "'if .Key' is none"),
        ("{{- .Key -}}", "'- .Key -' is none"),
        ("{{ }}", "'' is none"),
        ("{{ .Key", "a {{ has no }}, or a quote in it no end"),
        ('{{ .Metadata["a }}', "a {{ has no }}, or a quote in it no end"),
        (
            "{{ .Key | upper }}",
            "'.Key | upper' must be a field reference such as .Payload.After.name "
            """(cannot read ' | upper'; names other than letters, digits and _ go in ["…"])""",
        ),
        (5, "it must be text"),
    ],
)
def test_what_is_no_reference_is_a_mistake_that_says_what_is_supported(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match="must have") as caught:
        Template.of(written)

    assert str(caught.value) == f"{RULE} ({reason})"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record.of({}), "the record has no .Payload.After.x: .Payload.After has no field 'x'"),
        (
            Record.of({"x": b"\xff"}),
            ".Payload.After.x is not UTF-8 text: "
            "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        (
            Record.of({"x": [float("nan")]}),
            ".Payload.After.x cannot be written as JSON: [0] is nan",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused_naming_the_field(record: Record, message: str) -> None:
    with pytest.raises(RecordRefused) as caught:
        Template("{{ .Payload.After.x }}").render(record)

    assert caught.value.message == message
