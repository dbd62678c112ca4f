"""Templates: what their functions make of values, and that nothing but a refusal ever comes out of them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_py.errors import RecordRefused
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk.template import Template, TemplateInvalid
from conduit_py.sdk.template.functions import FUNCTIONS
from conduit_py.testing.strategies import data, python_values

AFTER = {
    "n": 7,
    "half": 0.5,
    "whole": 2.0,
    "text": " Hello, World ",
    "raw": b"\xff",
    "at": datetime(2026, 1, 31, 9, 30, tzinfo=UTC),
    "list": [3, "b", None],
    "deep": {"a": {"b": 1}},
    "empty": "",
    "yes": True,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no actions at all", "no actions at all"),
        ("id {{ .Payload.After.n }}!", "id 7!"),
        ("a {{- .Payload.After.n -}} b", "a7b"),
        ("{{ .Payload.After.half }} {{ .Payload.After.whole }}", "0.5 2"),
        ("{{ .Payload.After.at }}", "2026-01-31T09:30:00Z"),
        ("{{ .Payload.After.deep }}", '{"a":{"b":1}}'),
        ("{{ .Payload.After.yes }}", "true"),
        ("{{ .Operation }}/{{ .Key }}/{{ .Position }}", "snapshot/key/pos"),
        (
            '{{ printf "%05.1f|%q|%v|%t|%x|%%" .Payload.After.half .Payload.After.text 1 true 255 }}',
            '000.5|" Hello, World "|1|true|ff|%',
        ),
        ("{{ .Payload.After.text | trim | lower }}", "hello, world"),
        ('{{ trimPrefix " He" .Payload.After.text }}', "llo, World "),
        ('{{ replace "l" "L" .Payload.After.text | nospace }}', "HeLLo,WorLd"),
        ('{{ join "-" (splitList "," "a,b,c") }}', "a-b-c"),
        ('{{ substr 0 3 "abcdef" }}{{ trunc 2 "abcdef" }}{{ trunc -2 "abcdef" }}', "abcabef"),
        ('{{ slice "abcdef" 1 3 }}', "bc"),
        ('{{ default "none" .Payload.After.empty }}', "none"),
        ('{{ .Payload.After.missing | default "none" }}', "none"),
        ("{{ coalesce .Payload.After.missing .Payload.After.empty .Payload.After.n }}", "7"),
        ('{{ ternary "yes" "no" .Payload.After.yes }}', "yes"),
        ('{{ dig "a" "b" "none" .Payload.After.deep }}{{ dig "a" "x" "none" .Payload.After.deep }}', "1none"),
        ('{{ get .Payload.After "n" }}', "7"),
        ("{{ first .Payload.After.list }}{{ len .Payload.After.list }}", "33"),
        ("{{ add 1 2 .Payload.After.n }} {{ sub 1 3 }} {{ mul 2 3 }} {{ div -7 2 }} {{ mod -7 2 }}", "10 -2 6 -3 -1"),
        ("{{ max 1 9 3 }}{{ min 4 2 }}{{ floor 2.7 }}{{ ceil 2.1 }}", "9223"),
        ('{{ int "42" }} {{ int 3.9 }} {{ float64 "1.5" }}', "42 3 1.5"),
        ('{{ b64enc "hi" }} {{ b64dec "aGk=" }}', "aGk= hi"),
        ("{{ toJson .Payload.After.list }}", '[3,"b",null]'),
        ('{{ index (fromJson "[1,2]") 1 }}', "2"),
        ('{{ "tab\\tand \\u00e9" }}', "tab\tand é"),
        ("{{ if .Payload.After.empty }}a{{ else if .Payload.After.n }}b{{ else }}c{{ end }}", "b"),
        ("{{ if .Payload.After.n }}{{ if false }}a{{ end }}b{{ end }}", "b"),
        ("{{ if .Payload.After.missing }}a{{ end }}", ""),
    ],
)
def test_a_template_renders(text: str, expected: str) -> None:
    record = Record(b"pos", Operation.SNAPSHOT, {}, b"key", Payload(None, dict(AFTER)))

    assert Template(text).render(record) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "{{ .Payload.After.missing }}",
            "the record has no .Payload.After.missing: ",
        ),
        ("{{ .Payload.After.missing | upper }}", "a template refers to a field that the record does not have"),
        ("{{ .Payload.After.raw }}", ".Payload.After.raw is not UTF-8 text"),
        ("{{ upper .Payload.After.raw }}", "the value is not UTF-8 text"),
        ("{{ int .Payload.After.text }}", "' Hello, World ' is not a number"),
        ("{{ add .Payload.After.half 1 }}", "a whole number is needed, not a number"),
        ("{{ div .Payload.After.n 0 }}", "a division by zero"),
        ("{{ join .Payload.After.text .Payload.After.n }}", "a list is needed, not a number"),
        ('{{ printf "%d" .Payload.After.text }}', "a whole number is needed, not text"),
        ("{{ b64dec .Payload.After.text }}", "b64dec: not base64 of text"),
        ("{{ fromJson .Payload.After.text }}", "not valid JSON"),
        ("{{ ternary 1 2 .Payload.After.n }}", "ternary needs true or false as its last argument"),
    ],
)
def test_what_a_function_cannot_work_with_refuses_the_record(text: str, reason: str) -> None:
    with pytest.raises(RecordRefused) as refused:
        Template(text).render(Record.of(dict(AFTER)))

    assert refused.value.message.startswith(reason)


def parsed(text: str) -> Template | TemplateInvalid:
    try:
        return Template(text)
    except TemplateInvalid as invalid:
        return invalid


def rendered(template: Template, record: Record) -> str | RecordRefused:
    try:
        return template.render(record)
    except RecordRefused as refused:
        return refused


words = st.sampled_from(
    [
        *("{{", "}}", "{{-", "-}}", "(", ")", "|", ".", '"', "`", "'", "$", ":=", ",", "/*", "*/", "\\", "\n", " "),
        *("if", "else", "end", "range", "true", "nil", "1", "-2.5", "0x1f", '"text"', "`raw`", '"%d"'),
        *(".Metadata.a", ".Payload.After.a", ".Payload.Before", ".Key", ".Operation.String", ".Position", "."),
        *sorted(FUNCTIONS),
    ]
)


@given(text=st.lists(words, max_size=25).map(" ".join) | st.lists(words, max_size=25).map("".join) | st.text())
@example(text='{{ printf "%' + "9" * 5000 + 'd" 1 }}')
@example(text="{{ " + "9" * 5000 + " }}")
@example(text="{{ if 1 }}" * 500)
def test_any_text_is_a_template_or_is_refused_with_a_place_in_it(text: str) -> None:
    made = parsed(text)

    if isinstance(made, TemplateInvalid):
        assert 0 <= made.offset <= len(text)
        assert made.message


operands = st.sampled_from(
    [
        *(".Payload.After", ".Payload.After.a", ".Payload.After.b", ".Payload.Before", ".Key", ".Metadata.a", "."),
        *('"a"', '"%v"', "0", "-1", "2.5", "true", "nil", '(list 1 "a")', "(index .Metadata `b`)"),
    ]
)


@st.composite
def calls(draw: st.DrawFn) -> str:
    function = FUNCTIONS[draw(st.sampled_from(sorted(FUNCTIONS)))]
    most = function.most if function.most is not None else function.least + 2
    arguments = draw(st.lists(operands, min_size=function.least, max_size=most))
    return f"({' '.join([function.name, *arguments])})"


@given(
    call=calls(),
    after=st.fixed_dictionaries({"a": python_values(), "b": python_values()}) | data(python_values()),
    before=data(),
    key=data(python_values()),
)
@example(call="(gt .Payload.After.a 1)", after={"a": float("nan")}, before=None, key=None)
@example(call="(add .Payload.After.a 1)", after={"a": 10**5000}, before=None, key=None)
@example(call="(floor .Payload.After.a)", after={"a": 10**400}, before=None, key=None)
@example(call='(printf "%f" .Payload.After.a)', after={"a": 10**400}, before=None, key=None)
def test_any_call_on_any_record_gives_text_or_refuses_it(call: str, after: Any, before: Any, key: Any) -> None:
    made = parsed("{{ " + call + " }}")
    if isinstance(made, TemplateInvalid):
        return
    outcome = rendered(made, Record(b"1", Operation.UPDATE, {"a": "x"}, key, Payload(before, after)))

    assert outcome.message if isinstance(outcome, RecordRefused) else isinstance(outcome, str)
