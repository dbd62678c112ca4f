"""Lexer: splits a template into text and actions, and an action into tokens."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from conduit_py.sdk.template.field_syntax import QUOTED, unquote


class TemplateInvalid(ValueError):
    """An error in a template. `offset` is the index of the character where it is."""

    def __init__(self, message: str, offset: int, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.suggestion = suggestion

    def line(self, text: str) -> int:
        """Return the line of the error, counted from 0."""
        return text.count("\n", 0, self.offset)

    def describe(self, text: str) -> str:
        """Return the message with the character of the line, counted from 1."""
        start = text.rfind("\n", 0, self.offset) + 1
        return f"{self.message}, at character {self.offset - start + 1}"


TokenKind: TypeAlias = Literal["field", "subscript", "name", "variable", "string", "number", "symbol", "end"]


@dataclass(frozen=True)
class Text:
    """Text outside of braces, which is copied to the output."""

    text: str


@dataclass(frozen=True)
class Action:
    """The inside of double braces; `offset` is the index of its first character in the template."""

    text: str
    offset: int


class Token(NamedTuple):
    """A token of an action. `spaced` is true when a blank comes before it: `.a .b` is not `.a.b`."""

    kind: TokenKind
    value: str | int | float
    offset: int
    spaced: bool


def split(template: str) -> list[Text | Action]:
    """Return the texts and actions of a template, without comments and blanks that `{{-` and `-}}` remove."""
    pieces: list[Text | Action] = []
    at, trim = 0, False
    while (opening := template.find("{{", at)) >= 0:
        inner, trim_before = _begin(template, opening)
        text = template[at:opening]
        pieces += _text(text.lstrip() if trim else text, trim_before)
        end, trim = _end(template, opening, inner)
        at = end.after
        if not template.startswith("/*", inner):
            pieces.append(Action(template[inner : end.before], inner))
    rest = template[at:]
    pieces += _text(rest.lstrip() if trim else rest, False)
    return pieces


def tokens(action: Action) -> Iterator[Token]:
    """Yield the tokens of an action, then an "end"."""
    at, spaced, text = 0, True, action.text
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at, action.offset + at)
        at, kind = match.end(), match.lastgroup
        if kind != "space":
            yield _token(str(kind), match.group(), action.offset + match.start(), spaced)
        spaced = kind == "space"
    yield Token("end", "", action.offset + len(text.rstrip()), True)


class _End(NamedTuple):
    before: int
    after: int


def _begin(template: str, opening: int) -> tuple[int, bool]:
    """Return where the inside of an action begins, and True if blanks before it are removed."""
    trims = _TRIM_LEFT.match(template, opening + 2)
    return (trims.end(), True) if trims else (opening + 2, False)


def _end(template: str, opening: int, inner: int) -> tuple[_End, bool]:
    """Return where the inside ends and the rest begins, and True if blanks after it are removed."""
    if template.startswith("/*", inner):
        match = _COMMENT.match(template, inner)
        if match is None:
            raise TemplateInvalid("a comment {{/* must end in */}}", opening)
        return _End(inner, match.end()), match["trim"] is not None
    match = _INSIDE.match(template, inner)
    if match is None:
        raise TemplateInvalid("a {{ has no }}, or a quote in it no end", opening)
    return _End(match.end("inside"), match.end()), match["trim"] is not None


def _text(text: str, trim: bool) -> list[Text | Action]:
    text = text.rstrip() if trim else text
    return [Text(text)] if text else []


_TRIM_LEFT = re.compile(r"-\s+")
_COMMENT = re.compile(r"/\*.*?\*/(?P<trim>\s+-)?\}\}", re.DOTALL)
# Braces inside of quotes do not end an action.
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_RAW = r"`[^`]*`"
_CHARACTER = r"'(?:[^'\\\n]|\\.)*'"
_INSIDE = re.compile(
    rf"(?P<inside>(?:{_STRING}|{_RAW}|{_CHARACTER}|(?!\s-\}}\}}|\}}\}})[^\"'`])*)(?P<trim>\s-)?\}}\}}", re.DOTALL
)
_TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
    | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.]))
    | (?P<field>\.(?:[^\W\d]\w*)?)
    | (?P<subscript>\[\s*(?:{QUOTED})\s*\])
    | (?P<name>[^\W\d]\w*)
    | (?P<variable>\$\w*)
    | (?P<string>{_STRING}|{_RAW})
    | (?P<symbol>:=|[|(),=])
    """,
    re.VERBOSE | re.DOTALL,
)


def _token(kind: str, text: str, offset: int, spaced: bool) -> Token:
    if kind == "string":
        return Token("string", text[1:-1] if text[0] == "`" else _unescape(text, offset), offset, spaced)
    # Unescaped as in a field path, not as a Go string: `\n` in a name is the letter n.
    if kind == "subscript":
        return Token("subscript", unquote(text[1:-1].strip()), offset, spaced)
    if kind == "number":
        return Token("number", _number(text, offset), offset, spaced)
    return Token(kind, text, offset, spaced)  # type: ignore[arg-type]


def _number(text: str, offset: int) -> int | float:
    try:
        return int(text, 16) if "x" in text.lower() else int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise TemplateInvalid(f"{text} is not a number", offset) from None


def _unescape(text: str, offset: int) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[0]
        if escape[1] in _ESCAPES:
            return _ESCAPES[escape[1]]
        if len(escape) > 2 and int(escape[2:], 16) <= _CODE_POINT_MAX:
            return chr(int(escape[2:], 16))
        at = offset + 1 + match.start()
        raise TemplateInvalid(f"{escape} is not an escape sequence", at, r"write \\ for \ itself")

    return _ESCAPE.sub(character, text[1:-1])


_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "a": "\a", "b": "\b", "f": "\f"}
_CODE_POINT_MAX: Final = 0x10FFFF


def _unreadable(text: str, at: int, offset: int) -> TemplateInvalid:
    character = text[at]
    if character == "'":
        return TemplateInvalid("text goes in double quotes or in backticks, not in single quotes", offset)
    if character == "[":
        hint = "brackets hold a name in quotes; an element of a list is read with index: index .Payload.After.list 0"
        return TemplateInvalid("'[' means nothing here", offset, hint)
    if character == "-":
        hint = 'a name with a dash in it is read with index: index .Payload.After "a-name"'
        return TemplateInvalid("'-' means nothing here", offset, hint)
    if character in "=!<>&+*/":
        return TemplateInvalid(f"{character!r} means nothing here", offset, "functions compare: eq, ne, lt, le, gt, ge")
    return TemplateInvalid(f"{character!r} means nothing here", offset)
