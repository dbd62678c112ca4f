"""TemplateCondition: a Go template that decides which records a processor sees."""

from typing import Final

from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.template.errors import TemplateInvalid
from conduit_py.sdk.template.template import Template
from conduit_py.sdk.template.values import text_of

_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""The words that Conduit takes for true and false."""


class TemplateCondition:
    """True or false for each record; a text that is neither refuses the record.

    A template that is wrong in itself raises TemplateInvalid when it is made.
    """

    __slots__ = ("_template",)

    def __init__(self, text: str) -> None:
        self._template = Template(text.rstrip())
        if "{{" not in text and text.strip() not in _BOOLEANS:
            hint = "write it in double braces: '{{ … }}'"
            raise TemplateInvalid("is always the same text, which is neither true nor false", 0, hint)

    def __call__(self, record: Record) -> bool:
        value = self._template.value(record)
        if value is True or value is False:
            return value
        if value is None:
            raise RecordRefused(f"the condition {self} gives nothing: the record lacks the field")
        text = text_of(value).strip()
        decided = _BOOLEANS.get(text)
        if decided is None:
            raise RecordRefused(f"the condition {self} gives {text[:80]!r}, which is neither true nor false")
        return decided

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TemplateCondition) and other._template == self._template

    def __hash__(self) -> int:
        return hash(self._template)

    def __str__(self) -> str:
        return self._template.text

    def __repr__(self) -> str:
        return f"TemplateCondition({str(self)!r})"
