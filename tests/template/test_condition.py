"""Conditions: Go templates that decide about records, and every way to get one wrong."""

from decimal import Decimal

import pytest

from conduit_py.errors import RecordRefused
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk.template import TemplateCondition, TemplateInvalid

RECORD = Record(
    position=b"17",
    operation=Operation.UPDATE,
    metadata={"key": "expected", "opencdc.collection": "users", "flag": "T", "off": "0"},
    key=b"k1",
    payload=Payload(
        before={"n": 4},
        after={
            "n": 5,
            "price": 2.5,
            "exact": Decimal("2.50"),
            "name": "hello",
            "tags": ["a", "b"],
            "deep": {"inner": {"list": [1, 2, 3]}},
            "null": None,
            "on": True,
        },
    ),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{{ eq .Metadata.key "expected" }}', True),
        ("{{ eq .Metadata.key `expected` }}", True),
        ('{{ eq .Metadata.key "other" }}', False),
        ('{{ eq .Metadata.missing "x" }}', False),
        ('{{ ne .Metadata.missing "x" }}', True),
        ('{{ eq .Metadata.key "expected" | not }}', False),
        ('{{ eq .Metadata.key "one" "two" "expected" }}', True),
        ('{{ eq (index .Metadata "opencdc.collection") "users" }}', True),
        ('{{ eq (index .Metadata "missing") "" }}', True),
        ('{{ eq .Metadata["opencdc.collection"] "users" }}', True),
        ("{{ eq (.Payload.After)['name'] `hello` }}", True),
        ("{{ eq .metadata.key .Metadata.key }}", True),
        ('{{ ne .Operation.String "delete" }}', True),
        ('{{ eq .Operation "update" }}', True),
        ('{{ eq $.Operation.String "update" }}', True),
        ('{{ eq .Key "k1" }}', True),
        ('{{ eq .Position "17" }}', True),
        ("{{ .Metadata.flag }}", True),
        ("{{ .Metadata.off }}", False),
        ("{{ .Payload.After.on }}", True),
        ("{{ gt .Payload.After.n 3 }}", True),
        ("{{ ge .Payload.After.n 5 }}", True),
        ("{{ lt .Payload.After.n 5.5 }}", True),
        ("{{ le .Payload.After.n -1 }}", False),
        ("{{ eq .Payload.After.price .Payload.After.exact }}", True),
        ("{{ gt .Payload.After.n .Payload.Before.n }}", True),
        ("{{ and (gt .Payload.After.n 3) (lt .Payload.After.n 6) }}", True),
        ("{{ or (gt .Payload.After.n 30) (eq .Payload.After.n 5) }}", True),
        ("{{ not (and true false) }}", True),
        ("{{ eq (len .Payload.After.name) 5 }}", True),
        ('{{ contains "ell" .Payload.After.name }}', True),
        ('{{ .Payload.After.name | hasPrefix "he" }}', True),
        ('{{ .Payload.After.name | upper | hasSuffix "LO" }}', True),
        ('{{ regexMatch "^h.*o$" .Payload.After.name }}', True),
        ('{{ has "b" .Payload.After.tags }}', True),
        ("{{ eq (index .Payload.After.deep.inner.list 2) 3 }}", True),
        ("{{ eq (.Payload.After.deep).inner.missing.further nil }}", True),
        ('{{ eq .Payload.After.missing.further "x" }}', False),
        ('{{ hasKey .Payload.After "name" }}', True),
        ('{{ eq (printf "%s-%d" .Key .Payload.After.n) "k1-5" }}', True),
        ("{{ if .Payload.After.null }}true{{ else if eq .Payload.After.n 5 }} 1 {{ else }}false{{ end }}", True),
        ("{{- if .Payload.After.null -}} true {{- end -}} false", False),
        ("{{/* a remark */}}{{ true }}", True),
        ("  {{ true }}\n", True),
        ("true", True),
        ("F", False),
    ],
)
def test_a_condition_is_true_or_false(text: str, expected: bool) -> None:
    assert TemplateCondition(text)(RECORD) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{{ index .Metadata "opencdc.collection" }}', "is 'users', which is neither true nor false"),
        ("{{ .Metadata.missing }}", "has no value: the record has no such field"),
        ("{{ .Payload.After.n }}", "is '5', which is neither true nor false"),
        ('{{ eq .Payload.After.n "5" }}', "cannot compare a number with text"),
        ("{{ gt .Payload.After.tags 1 }}", "cannot compare a number with a list"),
        ("{{ lt .Payload.After.deep .Payload.After.deep }}", "structured data cannot be compared by size"),
        ("{{ .Key.field }}", "cannot read .Key.field: .Key is raw bytes, so it has no fields"),
        ("{{ .Payload.After.n.first }}", ".Payload.After.n is a number, so it has no fields"),
        ("{{ index .Payload.After.tags 2 }}", "there is no element 2: the list has 2"),
        ("{{ len .Payload.After.n }}", "a number has no length"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RecordRefused) as refused:
        TemplateCondition(text)(RECORD)

    assert refused.value.message.endswith(reason)


def test_a_field_of_an_absent_payload_is_refused_and_not_taken_for_false() -> None:
    deleted = Record(operation=Operation.DELETE, payload=Payload(before={"n": 1}))
    with pytest.raises(RecordRefused) as refused:
        TemplateCondition("{{ gt .Payload.After.n 3 }}")(deleted)

    assert refused.value.message == "cannot read .Payload.After.n: .Payload.After is absent, so it has no fields"


def test_what_decides_first_spares_the_rest() -> None:
    guarded = TemplateCondition('{{ and (ne .Operation.String "delete") (gt .Payload.After.n 3) }}')

    assert guarded(Record(operation=Operation.DELETE)) is False
    assert guarded(RECORD) is True


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        ('{{ eqq .Metadata.x "y" }}', "there is no function 'eqq', at character 4", "did you mean 'eq'?"),
        ("{{ eq .Metadata.x }}", "eq takes at least 2 arguments, not 1, at character 4", None),
        ("{{ not true false }}", "not takes 1 argument, not 2, at character 4", None),
        ("{{ .Metadta.x }}", "a record has no .Metadta, at character 4", "did you mean 'Metadata'?"),
        ("{{ .Payload.x }}", "a payload has .Before and .After, at character 4", "write .Payload.After.x"),
        (
            '{{ eq .Metadata.opencdc.version "v1" }}',
            "metadata is flat: a key with dots in it goes in brackets, at character 7",
            'write .Metadata["opencdc.version"]',
        ),
        (
            "{{ .Metadata.GetCollection }}",
            ".Metadata has no method `GetCollection`: templates cannot call methods, at character 4",
            'read the key: index .Metadata "opencdc.collection"',
        ),
        (
            "{{ eq .Metadata.x 'y' }}",
            "text goes in double quotes or in backticks, not in single quotes, at character 19",
            None,
        ),
        (
            '{{ eq .Payload.After.tags[0] "y" }}',
            "'[' means nothing here, at character 26",
            "brackets hold a name in quotes; an element of a list is read with index: index .Payload.After.list 0",
        ),
        (
            "{{ .Payload.After.my-field }}",
            "'-' means nothing here, at character 21",
            'a name with a dash in it is read with index: index .Payload.After "a-name"',
        ),
        ('{{ eq .Metadata.x "y"', "a {{ has no }}, or a quote in it no end, at character 1", None),
        ('{{ eq .Metadata.x "y }}', "a {{ has no }}, or a quote in it no end, at character 1", None),
        (
            "{{ range .Payload.After.tags }}{{ end }}",
            "range is not supported, at character 4",
            "templates have if, else and end, functions and pipes",
        ),
        ("{{ if true }}1", "this if has no end, at character 3", "add {{ end }}"),
        ("1{{ end }}", "this end has no if, at character 4", None),
        ("{{ if true }}1{{ else }}0{{ else }}0{{ end }}", "there is an else already, at character 28", None),
        ("{{ $x := 1 }}", "templates have no variables, so $x means nothing, at character 4", None),
        (
            '{{ .Metadata.x == "y" }}',
            "this is not a function, so it takes no arguments, at character 4",
            'a function comes first: eq .Metadata.a "b"',
        ),
        ("{{ (eq 1 1 }}", "this ( has no ), at character 4", None),
        ("{{ eq 1 1) }}", "')' means nothing here, at character 10", None),
        ("{{ }}", "something is missing here, at character 3", None),
        ("{{ true | }}", "something is missing here, at character 10", None),
        ("{{ 1 | .Key }}", "what follows a | must be a function, at character 8", None),
        ('{{ gt "a" 1 }}', "gt: cannot compare a number with text, at character 4", None),
        (
            '{{ regexMatch "(" .Key }}',
            "regexMatch: missing ): (, at character 15",
            "use the syntax of Go and RE2: it has no look-around, no backreferences and no possessive repeats",
        ),
        (
            '{{ regexMatch .Key "a" }}',
            "regexMatch: the pattern must be a literal text, not one from a record, at character 15",
            None,
        ),
        ('{{ printf "%d" }}', "printf: the format has 1 verbs and 0 values, at character 11", None),
        ('{{ eq .Key "a\\qb" }}', "\\q is not an escape sequence, at character 14", "write \\\\ for \\ itself"),
        ("true\n{{ foo }}", "there is no function 'foo', at character 4", "did you mean 'floor'?"),
        (
            "sometimes",
            "is always the same text, which is neither true nor false, at character 1",
            "write it in double braces: '{{ … }}'",
        ),
        (
            "{{" + "(" * 60 + "1" + ")" * 60 + "}}",
            "parentheses are nested too deeply, at character 53",
            None,
        ),
    ],
)
def test_a_problem_is_found_before_any_record_comes(text: str, message: str, suggestion: str | None) -> None:
    with pytest.raises(TemplateInvalid) as invalid:
        TemplateCondition(text)

    assert (invalid.value.describe(text), invalid.value.suggestion) == (message, suggestion)


def test_conditions_written_alike_are_equal() -> None:
    assert TemplateCondition("{{ true }}") == TemplateCondition("{{ true }}")
    assert (
        len({TemplateCondition("{{ true }}"), TemplateCondition("{{ true }}"), TemplateCondition("{{ false }}")}) == 2
    )
    assert str(TemplateCondition("{{ true }}")) == "{{ true }}"
