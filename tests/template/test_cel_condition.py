"""Conditions in CEL: which language a text is in, what they say of records, hostile ones too, and where they stand."""

import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from conduit_processors import filter

from conduit_py import Destination, Processor, processor
from conduit_py.errors import RecordRefused
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk.template import CelCondition, TemplateCondition, TemplateInvalid, condition_of
from conduit_py.testing import ScriptedDestination

RECORD = Record(
    b"1",
    Operation.UPDATE,
    {"tenant": "a", "opencdc.collection": "orders"},
    b"raw",
    Payload({"amount": 1}, {"amount": 12, "name": "Ann", "tags": ["x"], "at": datetime(2026, 1, 1, tzinfo=UTC)}),
)
OTHERS = {"price": Decimal("10.5"), "id": UUID(int=1), "deep": {"at": datetime(2026, 1, 1, tzinfo=UTC)}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("payload.amount > 10", CelCondition),
        ("{{ gt .Payload.After.amount 10 }}", TemplateCondition),
        ("  true\n", TemplateCondition),
        ("F", TemplateCondition),
        ("payload.text == '{' + '{'", CelCondition),
    ],
)
def test_double_braces_make_a_template_and_all_else_is_cel(text: str, kind: type) -> None:
    assert type(condition_of(text)) is kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("payload.amount > 10", True),
        ("payload.amount > before.amount && operation == 'update'", True),
        ("metadata.tenant == 'a' && metadata['opencdc.collection'] == 'orders'", True),
        ("key == b'raw'", True),
        ("has(payload.missing) && payload.missing > 1", False),
        ("'x' in payload.tags", True),
        ("payload.name.matches('^A')", True),
        ("timestamp(payload.at) < timestamp('2026-06-01T00:00:00Z')", True),
        ("payload.tags.exists(tag, tag == 'y')", False),
    ],
)
def test_what_an_expression_says_of_a_record(text: str, expected: bool) -> None:
    assert condition_of(text)(RECORD) is expected


def test_values_that_cel_does_not_have() -> None:
    record = Record.of(dict(OTHERS))

    assert condition_of("payload.price > 10.25")(record)
    assert condition_of("payload.id == '00000000-0000-0000-0000-000000000001'")(record)
    assert condition_of("payload.deep.at.startsWith('2026')")(record)


@pytest.mark.parametrize(
    ("text", "payload", "why"),
    [
        ("payload.amount > 10", {}, "Key not found"),
        ("payload.amount > 10", {"amount": "12"}, "No matching overloads"),
        ("payload.amount > 10", b"raw", "neither true nor false"),
        ("payload.amount > 10", {"amount": 2**70}, "out of range"),
        ("payload.amount", {"amount": 12}, "neither true nor false"),
        ("payload.amount > 10", {"amount": {1, 2}}, "Non-CEL value"),
        ("payload.s == 'a'", {"s": "\ud800"}, "neither true nor false"),
        ("payload.l.all(a, payload.l.all(b, payload.l.all(c, a + b + c >= 0)))", {"l": [1] * 300}, "budget exceeded"),
    ],
)
def test_a_record_without_an_answer_is_refused(text: str, payload: Any, why: str) -> None:
    with pytest.raises(RecordRefused, match="is neither true nor false") as caught:
        condition_of(text)(Record.of(payload))

    assert why in str(caught.value)


def test_a_payload_that_is_nested_deeply_ends_nothing() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(RecordRefused, match="nested so deeply"):
        condition_of("payload.amount > 10")(Record.of({"deep": deep}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("payload.amount >", "is no CEL: Syntax error: mismatched input '<EOF>'"),
        ("amount > 10", "undeclared reference to 'amount'"),
        ("operation > 1", "found no matching overload"),
        ("operation", "is string in CEL, which is neither true nor false"),
        ("(" * 100 + "true" + ")" * 100, "recursion limit"),
    ],
)
def test_a_wrong_expression_is_a_problem_before_the_start(text: str, message: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        condition_of(text)

    assert message in caught.value.describe(text)


def test_conditions_are_sent_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(condition_of("payload.amount > 10")))  # noqa: S301 - our own bytes

    assert sent == condition_of("payload.amount > 10")
    assert sent(RECORD)


def test_a_condition_is_taken_where_a_function_is() -> None:
    def same(record: Record) -> Record:
        return record

    nodes: list[Processor | Destination] = [
        Processor("p", same, when="payload.amount > 10"),
        Processor("p", processor(when="payload.amount > 10")(same)),
        Destination("d", ScriptedDestination(), when="payload.amount > 10"),
    ]
    kept = filter.Keep("payload.amount > 10").fresh()
    kept.open()

    assert [each.problems for each in nodes] == [[], [], []]
    assert all(each.when is not None and each.when(RECORD) for each in nodes)
    assert kept.process(RECORD) is RECORD


def test_a_wrong_condition_is_a_problem_of_its_node() -> None:
    [problem] = Processor("p", filter.Filter(), when="payload.amount >").problems

    assert problem.path == "when"
    assert "must be a condition (is no CEL: Syntax error" in problem.message
