"""Templates: fields of a record as text."""

import datetime as dt
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Operation, Payload, Record, RecordRefused
from conduit_py.sdk.template import Template


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
        ("{{ nowt }}", "there is no function 'nowt', at character 4"),
        ("{{ }}", "something is missing here, at character 3"),
        ("{{ .Key", "a {{ has no }}, or a quote in it no end, at character 1"),
        ('{{ .Metadata["a }}', "a {{ has no }}, or a quote in it no end, at character 1"),
        ("{{ .Payload.After.list[0] }}", "'[' means nothing here, at character 23"),
        (5, "it must be text"),
    ],
)
def test_an_option_that_is_no_template_says_what_is_wrong_with_it(written: object, reason: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        Template.of(written)

    assert str(caught.value) == f"must be a template ({reason})"


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
