"""Template: text with references to the record in double braces, as in `order {{ .Payload.After.id }}`.

A template is text and expressions in turn. An expression is a function from a record to a text, made by
`_expression`, which is the one place to teach new ones.
"""

import re
from collections.abc import Callable
from typing import Self, TypeAlias

from conduit_processors.text import text_of
from conduit_py.sdk import Record
from conduit_py.sdk.template.field_path import FieldPath
from conduit_py.sdk.text_option import TextOption, option_error

Expression: TypeAlias = Callable[[Record], str]


class Template(TextOption):
    """Parsed once, rendered for every record. The result is always text."""

    __slots__ = ("_parts", "source")

    def __init__(self, source: str) -> None:
        """Raises ValueError for what is inside braces and is no reference."""
        self.source = source
        self._parts = _parts(source)

    @classmethod
    def of(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise _malformed("it must be text")
        return cls(value)

    def render(self, record: Record) -> str:
        """The text for one record; a record that lacks a field raises RecordRefused naming it."""
        return "".join([part if type(part) is str else part(record) for part in self._parts])  # type: ignore[operator]

    def __str__(self) -> str:
        return self.source


def is_template(text: str) -> bool:
    return "{{" in text


# Braces in the quotes of a reference do not end an expression.
_ACTION = re.compile(r"""\{\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?!\}\})[^"'])*)\}\}""", re.DOTALL)


def _parts(source: str) -> list[str | Expression]:
    parts: list[str | Expression] = []
    at = 0
    for action in _ACTION.finditer(source):
        parts += [source[at : action.start()], _expression(action[1].strip())]
        at = action.end()
    parts.append(source[at:])
    if any(isinstance(part, str) and is_template(part) for part in parts):
        raise _malformed("a {{ has no }}, or a quote in it no end")
    return [part for part in parts if part != ""]


def _expression(text: str) -> Expression:
    # Without its dot a name would mean a function, which this language may have one day.
    if not text.startswith("."):
        raise _malformed(f"{text!r} is none")
    try:
        reference = FieldPath.of(text)
    except ValueError as error:
        raise _malformed(f"{text!r} {error}") from None
    get, name = reference.get, str(reference)
    return lambda record: text_of(get(record), name)


def _malformed(what: str) -> ValueError:
    rule = (
        "must have only references inside {{ }}, such as {{ .Payload.After.name }}, no functions, pipes or conditions"
    )
    return option_error(f"{rule} ({what})")
