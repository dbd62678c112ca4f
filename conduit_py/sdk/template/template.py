"""Template: a Go template over a record, compiled once to functions. Conditions: a template or CEL."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any, Final, Self, TypeAlias, TypeVar
from uuid import UUID

from conduit_py.errors import RecordRefused
from conduit_py.json_checks import is_nested_deeply
from conduit_py.record import Record
from conduit_py.sdk.plugin import TextOption, option_error
from conduit_py.sdk.template.field_path import FieldPath
from conduit_py.sdk.template.field_syntax import FieldPathInvalid, locate
from conduit_py.sdk.template.functions import AND, INDEX, OR
from conduit_py.sdk.template.lexer import TemplateInvalid, Text
from conduit_py.sdk.template.parser import Branch, Chain, Expression, Field, FunctionCall, Literal, Part, parse
from conduit_py.sdk.template.strings import REGEX, PatternInvalid, compile_pattern, verbs
from conduit_py.sdk.template.values import field_of, text_of, truth

Get: TypeAlias = Callable[[Record], Any]
Render: TypeAlias = Callable[[Record], str]


class Template(TextOption):
    """Renders a text for each record. Templates with the same text are equal.

    The constructor raises TemplateInvalid for every error that can be found without a record. Rendering raises
    RecordRefused if the template does not fit the record, and no other error.
    """

    __slots__ = ("_parts", "_value", "text")

    def __init__(self, text: str) -> None:
        parts = parse(text)
        self.text = text
        self._parts = [_compile_text(part) for part in parts]
        single = len(parts) == 1 and isinstance(parts[0], Literal | Field | Chain | FunctionCall)
        self._value: Get | None = _compile(parts[0]) if single else None  # type: ignore[arg-type]

    @classmethod
    def of(cls, value: object) -> Self:
        """Return a template for the value of an option. Raises ValueError if it is not a template."""
        return value if isinstance(value, cls) else _make_option(cls, "template", value)

    def render(self, record: Record) -> str:
        """Return the text for one record. A null field renders as `null`; a missing field refuses the record."""
        return "".join([part(record) for part in self._parts])

    def value(self, record: Record) -> Any:
        """Return the value of a template that is one action, before it becomes text; else the rendered text."""
        return self.render(record) if self._value is None else self._value(record)

    def __str__(self) -> str:
        return self.text


def is_template(text: str) -> bool:
    """Return True if a text has actions. Any other text is the same for every record."""
    return "{{" in text


class TemplateCondition(TextOption):
    """True or false for each record. A result that is neither refuses the record.

    The constructor raises TemplateInvalid, as that of a template does.
    """

    __slots__ = ("_template",)

    def __init__(self, text: str) -> None:
        # A block of YAML ends in a newline. With it the template would be text and not one value.
        self._template = Template(text.rstrip())
        if not is_template(text) and text.strip() not in _BOOLEANS:
            hint = "write it in double braces: '{{ … }}'"
            raise TemplateInvalid("is always the same text, which is neither true nor false", 0, hint)

    def __call__(self, record: Record) -> bool:
        value = self._template.value(record)
        if value is True or value is False:
            return value
        if value is None:
            raise RecordRefused(f"the condition {self} has no value: the record has no such field")
        text = text_of(value).strip()
        decided = _BOOLEANS.get(text)
        if decided is None:
            raise RecordRefused(f"the condition {self} is {text[:80]!r}, which is neither true nor false")
        return decided

    def __str__(self) -> str:
        return self._template.text


class CelCondition(TextOption):
    """An expression in CEL that is true or false for each record, such as `payload.amount > 10`.

    Its variables are `payload` (payload.after), `before`, `key`, `metadata` and `operation`. An expression of another
    type is an error; one without a value for a record refuses it. Evaluation is bounded: at most 10 000 iterations.
    """

    __slots__ = ("_expression", "_text")

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        try:
            from cel_expr_python import cel
        except ImportError:
            hint = "pip install 'conduit-dataflow[cel]', or write a template in double braces: '{{ … }}'"
            raise TemplateInvalid("CEL needs the package cel-expr-python, which is not installed", 0, hint) from None
        kinds = cel.Type
        variables = dict.fromkeys(("payload", "before", "key"), kinds.DYN)
        variables |= {"metadata": kinds.Map(kinds.STRING, kinds.STRING), "operation": kinds.STRING}
        try:
            self._expression = cel.NewEnv(variables=variables).compile(self._text)
        except RuntimeError as error:
            raise _cel_error(self._text, str(error)) from None
        if (kind := self._expression.return_type().name()) not in ("BOOL", "DYN"):
            raise TemplateInvalid(f"is {kind.lower()} in CEL, which is neither true nor false", 0)

    def __call__(self, record: Record) -> bool:
        parts = (record.payload.after, record.payload.before, record.key)
        # CEL is a library in C++ that would overflow its stack, and end the process.
        if is_nested_deeply(parts):
            raise RecordRefused(f"the condition {self} takes no record that is nested so deeply")
        # Converted only if it must be: most records have nothing but what CEL has too, and a copy costs time.
        for values in (parts, map(_to_cel, parts)):
            if (answer := self._evaluate(record, values)) is True or answer is False:
                return answer
        raise RecordRefused(f"the condition {self} is neither true nor false: {str(answer)[:200]}")

    def _evaluate(self, record: Record, parts: Iterable[Any]) -> Any:
        data: dict[str, Any] = {"metadata": record.metadata, "operation": record.operation.value}
        try:
            data |= zip(("payload", "before", "key"), parts, strict=True)
            # An error of CEL is a value here: its text.
            return self._expression.eval(data=data).value()
        except (RuntimeError, ValueError, RecursionError) as error:
            return error

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        # For Spark: a compiled expression cannot be sent to another process.
        return type(self), (self._text,)

    def __str__(self) -> str:
        return self._text


def _cel_error(text: str, error: str) -> TemplateInvalid:
    """Return the first error of the compiler, which has a line, a column, a message, and a drawing of the place."""
    found = re.search(r"ERROR: <input>:(\d+):(\d+): (.*?)(?: \(in container ''\))?$", error, re.MULTILINE)
    if found is None:
        return TemplateInvalid(f"is no CEL: {error[:200]}", 0)
    offset = sum(map(len, text.splitlines(keepends=True)[: int(found[1]) - 1])) + int(found[2]) - 1
    hint = "variables are payload, before, key, metadata and operation; a template is in double braces: '{{ … }}'"
    return TemplateInvalid(f"is no CEL: {found[3][:200]}", offset, hint)


def _to_cel(value: Any) -> Any:
    """Return a value as CEL can have it: times and ids are text, decimals are doubles."""
    if isinstance(value, dict):
        return {str(name): _to_cel(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_to_cel, value))
    if isinstance(value, date | time):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else str(value) if isinstance(value, UUID) else value


def condition_of(text: str) -> TemplateCondition | CelCondition:
    """Return the condition for a text: a template if it has double braces or is just true or false, else CEL.

    Raises TemplateInvalid.
    """
    # No expression in CEL has double braces outside of a text.
    return TemplateCondition(text) if is_template(text) or text.strip() in _BOOLEANS else CelCondition(text)


def condition_option(value: object) -> TemplateCondition | CelCondition:
    """Return a condition for the value of an option. Raises ValueError if it is not a condition."""
    return (
        value if isinstance(value, TemplateCondition | CelCondition) else _make_option(condition_of, "condition", value)
    )


OptionT = TypeVar("OptionT", bound=TextOption)


def _make_option(make: Callable[[str], OptionT], name: str, value: object) -> OptionT:
    if not isinstance(value, str):
        raise option_error(f"must be a {name} (it must be text)")
    try:
        return make(value)
    except TemplateInvalid as invalid:
        raise option_error(f"must be a {name} ({invalid.describe(value)})", invalid.suggestion) from None


_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""The words that Conduit accepts as true and false."""


def _compile_text(part: Part) -> Render:
    if isinstance(part, Text):
        text = part.text
        return lambda record: text
    if isinstance(part, Branch):
        return _compile_branch(part)
    if isinstance(part, Field):
        return _compile_field_text(part)
    value = _compile(part)
    return lambda record: text_of(value(record))


def _compile_field_text(field: Field) -> Render:
    """Compile a field that is an action alone. It must exist, so that a misspelt name does not render as `null`."""
    path = _path(field)
    get, name = path.get, str(path)

    def render(record: Record) -> str:
        value = get(record)
        return "null" if value is None else text_of(value, name)

    return render


def _compile_branch(branch: Branch) -> Render:
    choices = [
        (None if condition is None else _compile(condition), [_compile_text(part) for part in parts])
        for condition, parts in branch.choices
    ]

    def choose(record: Record) -> str:
        for condition, parts in choices:
            if condition is None or truth(condition(record)):
                return "".join([part(record) for part in parts])
        return ""

    return choose


def _compile(expression: Expression) -> Get:
    if isinstance(expression, Literal):
        value = expression.value
        return lambda record: value
    if isinstance(expression, Field):
        return _path(expression).find
    if isinstance(expression, Chain):
        return _compile_chain(_compile(expression.inner), expression.names)
    return _compile_call(expression)


def _path(field: Field) -> FieldPath:
    names = field.names
    # In Go these have types with a method `.String`; here they are text, so `.String` is the value itself.
    if names[1:] == ("String",) and names[0] in ("Operation", "Position"):
        names = names[:1]
    if names[:1] == ("Metadata",) and len(names) == 2 and _METHOD.match(names[1]):
        message = f".Metadata has no method `{names[1]}`: templates cannot call methods"
        raise TemplateInvalid(message, field.offset, 'read the key: index .Metadata "opencdc.collection"')
    try:
        return FieldPath(*locate(names))
    except FieldPathInvalid as invalid:
        raise TemplateInvalid(invalid.message, field.offset, invalid.suggestion) from None


_METHOD = re.compile("[GS]et[A-Z]")


def _compile_chain(inner: Get, names: Sequence[str]) -> Get:
    def get(record: Record) -> Any:
        value = inner(record)
        for name in names:
            value = field_of(value, name)
        return value

    return get


def _compile_call(call: FunctionCall) -> Get:
    _check_arguments(call)
    arguments = [_compile(argument) for argument in call.arguments]
    if all(isinstance(argument, Literal) for argument in call.arguments):
        return _constant(call, [argument.value for argument in call.arguments if isinstance(argument, Literal)])
    if call.function.name in (AND, OR):
        return _lazy(arguments, stop_at=call.function.name == OR)
    if call.function.name == INDEX and call.arguments[0] == Field(("Metadata",), call.arguments[0].offset):
        return _index_metadata(arguments, call.offset)
    function = call.function.call
    # Most functions in conditions take two arguments, and this spares a list for each record.
    if len(arguments) == 2:
        left, right = arguments
        return lambda record: function(left(record), right(record))
    return lambda record: function(*[argument(record) for argument in arguments])


def _index_metadata(arguments: Sequence[Get], offset: int) -> Get:
    """Compile `index .Metadata "a.key"`. A missing key is the empty text, as in a Go map from text to text."""
    if len(arguments) != 2:
        raise TemplateInvalid("index of .Metadata takes one key: metadata is flat", offset)
    key = arguments[1]
    return lambda record: record.metadata.get(text_of(key(record)), "")


def _constant(call: FunctionCall, values: Sequence[Any]) -> Get:
    """Evaluate a call without fields once, while compiling: it has the same result or error for every record."""
    try:
        value = call.function.call(*values)
    except RecordRefused as refused:
        raise TemplateInvalid(f"{call.function.name}: {refused.message}", call.offset) from refused
    return lambda record: value


def _lazy(arguments: Sequence[Get], *, stop_at: bool) -> Get:
    """Compile `and` and `or`: they return the first argument that decides, and do not evaluate those after it."""
    *earlier, last = arguments

    def choose(record: Record) -> Any:
        for argument in earlier:
            value = argument(record)
            if truth(value) is stop_at:
                return value
        return last(record)

    return choose


def _check_arguments(call: FunctionCall) -> None:
    """Check literal formats and regular expressions while compiling."""
    first = call.arguments[0] if call.arguments else None
    text = first.value if isinstance(first, Literal) and isinstance(first.value, str) else None
    try:
        if call.function.name == REGEX:
            # A pattern from a record could take as much memory as it likes, and would be compiled for each record.
            if text is None:
                raise ValueError("the pattern must be a literal text, not one from a record")
            compile_pattern(text)
        if call.function.name == "printf" and text is not None:
            _check_count(len(verbs(text)), len(call.arguments) - 1)
    except ValueError as error:
        suggestion = error.suggestion if isinstance(error, PatternInvalid) else None
        offset = first.offset if first else call.offset
        raise TemplateInvalid(f"{call.function.name}: {error}", offset, suggestion) from None


def _check_count(verbs: int, values: int) -> None:
    if verbs != values:
        raise ValueError(f"the format has {verbs} verbs and {values} values")
