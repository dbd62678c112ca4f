"""`error` refuses records."""

from collections.abc import Callable
from typing import Annotated, Any, TypedDict, Unpack

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from conduit_py.sdk import Options, Processor, Record, RecordRefused
from conduit_py.sdk.template import Template


def _message(value: Any) -> "Template | Callable[[Record], str]":
    return value if callable(value) else Template.of(value)


class ErrorOptions(Options):
    """Options of error."""

    message: Annotated[Any, BeforeValidator(_message), PlainSerializer(str), WithJsonSchema({"type": "string"})] = (
        Field(
            default=Template("error processor triggered"),
            description="why the record is refused: a template, or a function of the record",
        )
    )


class ErrorArguments(TypedDict, total=False):
    """ErrorOptions as a caller writes them, for editors and type checkers."""

    message: Any


class Error(Processor[ErrorOptions]):
    """Refuses every record it sees, so it becomes a dead letter; `Processor(id, Error(), when=…)` chooses which."""

    blocking = False

    def __init__(self, **options: Unpack[ErrorArguments]) -> None:
        super().__init__(**options)

    def process(self, record: Record) -> Record:
        raise RecordRefused(self._message(record))

    def _message(self, record: Record) -> str:
        message = self.options.message
        try:
            return str(message.render(record) if isinstance(message, Template) else message(record))
        except RecordRefused as refused:
            # A message that cannot be rendered must not hide that the record is refused by intent.
            text = getattr(message, "__name__", None) or str(message)
            return f"{text} ({refused.message})"
