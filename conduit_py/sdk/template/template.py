"""Template: a Go template over a record, parsed once and made into functions."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.template.errors import TemplateInvalid
from conduit_py.sdk.template.functions import AND, INDEX, OR
from conduit_py.sdk.template.lexer import Text
from conduit_py.sdk.template.parser import Branch, Chain, Expression, Field, FunctionCall, Literal, Part, parse
from conduit_py.sdk.template.printing import verbs
from conduit_py.sdk.template.reach import reach
from conduit_py.sdk.template.strings import REGEX, pattern
from conduit_py.sdk.template.values import field_of, text_of, truth

Get: TypeAlias = Callable[[Record], Any]


class Template:
    """Renders a text for each record. Two templates are equal when they are written in the same way.

    Everything that can be wrong without a record in sight raises TemplateInvalid when it is made;
    what does not fit a record raises RecordRefused when it is rendered, and nothing else does.
    """

    __slots__ = ("_parts", "_single", "text")

    def __init__(self, text: str) -> None:
        parts = parse(text)
        self.text = text
        self._parts = [_part(part) for part in parts]
        self._single = len(parts) == 1 and isinstance(parts[0], Literal | Field | Chain | FunctionCall)

    def __call__(self, record: Record) -> str:
        """The text for one record."""
        return "".join([text_of(part(record)) for part in self._parts])

    def value(self, record: Record) -> Any:
        """What a template of one action gives, before it becomes text; the text for any other template."""
        return self._parts[0](record) if self._single else self(record)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def _part(part: Part) -> Get:
    if isinstance(part, Text):
        text = part.text
        return lambda record: text
    return _branch(part) if isinstance(part, Branch) else _expression(part)


def _branch(branch: Branch) -> Get:
    choices = [
        (None if condition is None else _expression(condition), [_part(part) for part in parts])
        for condition, parts in branch.choices
    ]

    def choose(record: Record) -> str:
        for condition, parts in choices:
            if condition is None or truth(condition(record)):
                return "".join([text_of(part(record)) for part in parts])
        return ""

    return choose


def _expression(expression: Expression) -> Get:
    if isinstance(expression, Literal):
        value = expression.value
        return lambda record: value
    if isinstance(expression, Field):
        return reach(expression.names, expression.offset)
    if isinstance(expression, Chain):
        return _chain(_expression(expression.inner), expression.names)
    return _call(expression)


def _chain(inner: Get, names: Sequence[str]) -> Get:
    def get(record: Record) -> Any:
        value = inner(record)
        for name in names:
            value = field_of(value, name)
        return value

    return get


def _call(call: FunctionCall) -> Get:
    _check_arguments(call)
    arguments = [_expression(argument) for argument in call.arguments]
    if all(isinstance(argument, Literal) for argument in call.arguments):
        return _constant(call, [argument.value for argument in call.arguments if isinstance(argument, Literal)])
    if call.function.name in (AND, OR):
        return _lazy(arguments, stop_at=call.function.name == OR)
    if call.function.name == INDEX and call.arguments[0] == Field(("Metadata",), call.arguments[0].offset):
        return _metadata(arguments, call.offset)
    function = call.function.call
    if len(arguments) == 2:
        left, right = arguments
        return lambda record: function(left(record), right(record))
    return lambda record: function(*[argument(record) for argument in arguments])


def _metadata(arguments: Sequence[Get], offset: int) -> Get:
    """`index .Metadata "a.key"`: metadata maps text to text, so in Go what it lacks is the empty text."""
    if len(arguments) != 2:
        raise TemplateInvalid("index of .Metadata takes one key: metadata is flat", offset)
    key = arguments[1]
    return lambda record: record.metadata.get(text_of(key(record)), "")


def _constant(call: FunctionCall, values: Sequence[Any]) -> Get:
    """Without a record among its arguments a call gives the same each time, or fails each time."""
    try:
        value = call.function.call(*values)
    except RecordRefused as refused:
        raise TemplateInvalid(f"{call.function.name}: {refused.message}", call.offset) from refused
    return lambda record: value


def _lazy(arguments: Sequence[Get], *, stop_at: bool) -> Get:
    """`and` and `or`: the first argument that decides it; those after it are not looked at."""
    *earlier, last = arguments

    def choose(record: Record) -> Any:
        for argument in earlier:
            value = argument(record)
            if truth(value) is stop_at:
                return value
        return last(record)

    return choose


def _check_arguments(call: FunctionCall) -> None:
    """Formats and regular expressions that are written down are checked before any record comes."""
    first = call.arguments[0] if call.arguments else None
    text = first.value if isinstance(first, Literal) and isinstance(first.value, str) else None
    try:
        if call.function.name == REGEX:
            if text is None:
                raise ValueError("the pattern must be written down: one from a record could take for ever")
            pattern(text)
        if call.function.name == "printf" and text is not None:
            _check_count(len(verbs(text)), len(call.arguments) - 1)
    except (re.error, ValueError, RecursionError, OverflowError) as error:
        raise TemplateInvalid(f"{call.function.name}: {error}", first.offset if first else call.offset) from None


def _check_count(verbs: int, values: int) -> None:
    if verbs != values:
        raise ValueError(f"the format has {verbs} verbs and {values} values")
