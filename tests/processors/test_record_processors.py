"""clone, split, filter and error: what becomes of a record as a whole."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conduit_processors.clone import Clone
from conduit_processors.error import Error
from conduit_processors.filter import Drop, Filter, Keep
from conduit_processors.split import Split
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.sdk import Payload, Record, RecordRefused

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]


@pytest.mark.parametrize("count", [2, "2"])
def test_clone_sends_on_the_record_and_independent_copies(run: Run, count: Any) -> None:
    given = Record(b"p", metadata={"m": "x"}, key={"id": 1}, payload=Payload({"old": []}, {"new": []}))

    records = run(Clone(count=count), given)
    for each in records:
        each.payload["new"].append(1)
        each.payload.before["old"].append(1)
        each.key["id"] += 1

    assert records == [
        Record(
            b"p", metadata={"m": "x", "clone.index": index}, key={"id": 2}, payload=Payload({"old": [1]}, {"new": [1]})
        )
        for index in ("0", "1", "2")
    ]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "Input should be greater than or equal to 1, not 0"),
        ("many", "Input should be a valid integer, unable to parse string as an integer, not 'many'"),
    ],
)
def test_clone_needs_a_count(count: Any, message: str) -> None:
    [problem] = Clone(count=count).problems

    assert (problem.path, problem.message) == ("count", message)


def test_split_puts_each_element_in_the_place_of_the_list(run: Run) -> None:
    shared = {"sku": 1}
    given = Record(b"p", metadata={"m": "x"}, payload=Payload(None, {"order": {"id": 7, "lines": [shared, shared, 5]}}))

    pieces = run(Split(field="order.lines"), given)
    pieces[0].payload["order"]["lines"]["sku"] = 2
    pieces[0].payload["order"]["id"] = 8

    assert [piece.payload["order"] for piece in pieces] == [
        {"id": 8, "lines": {"sku": 2}},
        {"id": 7, "lines": {"sku": 1}},
        {"id": 7, "lines": 5},
    ]
    assert [piece.metadata for piece in pieces] == [{"m": "x", "split.index": index} for index in ("0", "1", "2")]
    assert {piece.position for piece in pieces} == {b"p"}


def test_split_leaves_the_record_itself_as_it_was(run: Run) -> None:
    given = Record.of({"lines": [1, 2]})

    run(Split(field="lines"), given)

    assert given == Record.of({"lines": [1, 2]})


def test_split_leaves_a_record_that_cannot_be_copied_as_it_was(run: Run) -> None:
    given = Record.of({"lines": [1, 2], "lock": threading.Lock()})

    with pytest.raises(TypeError, match="cannot pickle"):
        run(Split(field="lines"), given)

    assert given.payload["lines"] == [1, 2]


def test_a_record_with_an_empty_list_is_filtered(run: Run) -> None:
    assert run(Split(field="lines"), Record.of({"lines": []})) == []


@given(st.lists(st.integers() | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers())))
def test_the_pieces_hold_the_elements_in_order(elements: list[Any]) -> None:
    split = Split(field=".Key.x")
    split.open()

    pieces = split.process(Record(key={"x": elements}))

    assert [piece.key for piece in pieces] == [{"x": element} for element in elements]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ({"lines": "abc"}, ".Payload.After.lines: cannot be split: it is text and not a list"),
        ({"lines": None}, ".Payload.After.lines: cannot be split: it is absent and not a list"),
        ({}, "the record has no .Payload.After.lines: .Payload.After has no field 'lines'"),
    ],
)
def test_what_is_not_a_list_is_not_split(refusal: Refusal, after: Any, message: str) -> None:
    assert refusal(Split(field="lines"), Record.of(after)).message == message


@pytest.mark.parametrize("field", [".Payload.After", ".Key", ".Metadata.x", "."])
def test_only_a_field_can_be_split(field: str) -> None:
    assert [problem.path for problem in Split(field=field).problems] == ["field"]


def test_filter_drops_every_record(run: Run) -> None:
    assert run(Filter(), Record.of({"id": 7})) is None


@pytest.mark.parametrize(
    "condition",
    ["{{ gt .Payload.After.id 5 }}", lambda record: record.payload["id"] > 5, "{{ .Payload.After.wanted }}"],
)
def test_keep_and_drop_decide_by_their_condition(run: Run, condition: Any) -> None:
    wanted, other = Record.of({"id": 7, "wanted": True}), Record.of({"id": 3, "wanted": False})

    assert [run(Keep(condition), wanted), run(Keep(condition), other)] == [wanted, None]
    assert [run(Drop(condition), wanted), run(Drop(condition), other)] == [None, other]


@pytest.mark.parametrize("processor", [Keep, Drop])
def test_a_record_on_which_a_condition_is_neither_true_nor_false_is_refused(refusal: Refusal, processor: Any) -> None:
    assert refusal(processor("{{ .Payload.After.x }}"), Record.of({})).message == (
        "the condition {{ .Payload.After.x }} has no value: the record has no such field"
    )
    assert refusal(processor("{{ .Payload.After.x }}"), Record.of({"x": 5})).message == (
        "the condition {{ .Payload.After.x }} is '5', which is neither true nor false"
    )


async def _is_wanted(record: Record) -> bool:
    return True


@pytest.mark.parametrize("processor", [Keep, Drop])
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("{{ .Payload.After.x", "must be a condition (a {{ has no }}, or a quote in it no end, at character 1), "),
        ("sometimes", "must be a condition (is no CEL: undeclared reference to 'sometimes', at character 1)"),
        (5, "must be a condition (it must be text), not 5"),
        (_is_wanted, "must answer at once: write a plain function, not an async one"),
    ],
)
def test_a_wrong_condition_is_reported_before_anything_runs(processor: Any, condition: Any, message: str) -> None:
    [problem] = processor(condition).problems

    assert problem.path == "condition"
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "error processor triggered"),
        ({"message": "no"}, "no"),
        ({"message": "no {{ .Payload.After.id }}"}, "no 7"),
        (
            {"message": "no {{ .Payload.After.x }}"},
            "no {{ .Payload.After.x }} (the record has no .Payload.After.x: .Payload.After has no field 'x')",
        ),
    ],
)
def test_error_refuses_every_record_with_its_message(refusal: Refusal, options: dict[str, str], message: str) -> None:
    assert refusal(Error(**options), Record.of({"id": 7})).message == message


def test_error_takes_a_function_of_the_record_for_its_message(refusal: Refusal) -> None:
    def why(record: Record) -> str:
        return f"{record.payload['id']} is not wanted"

    assert refusal(Error(message=why), Record.of({"id": 7})).message == "7 is not wanted"
    assert refusal(Error(message=why), Record.of(b"raw")).message.startswith("why (payload.after is raw bytes")


def test_error_reports_a_wrong_template() -> None:
    [problem] = Error(message="{{ fail }}").problems

    assert problem.path == "message"
    assert problem.message == "must be a template (there is no function 'fail', at character 4), not '{{ fail }}'"
    assert problem.suggestion is not None
    assert problem.suggestion.startswith("a field begins with a dot, as in .Payload.After.fail; functions are add, ")
