"""`error` refuses records."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from conduit_processors.template import Template
from conduit_py.sdk import Options, Processor, Record, RecordRefused


def _message(value: Any) -> "Template | Callable[[Record], str]":
    return value if callable(value) else Template.of(value)


class ErrorOptions(Options):
    """Options of error."""

    message: Annotated[Any, BeforeValidator(_message), PlainSerializer(str), WithJsonSchema({"type": "string"})] = (
        Field(
            default=Template("error processor triggered"),
            description="why the record is refused: text, with references to the record in {{ }}, or a function of it",
        )
    )


class Error(Processor[ErrorOptions]):
    """Refuses every record it sees, so it becomes a dead letter; `Processor(id, Error(), when=…)` chooses which."""

    blocking = False

    def process(self, record: Record) -> Record:
        raise RecordRefused(self._message(record))

    def _message(self, record: Record) -> str:
        message = self.options.message
        try:
            return str(message.render(record) if isinstance(message, Template) else message(record))
        except RecordRefused as refused:
            # The message matters more than what it could not say.
            text = getattr(message, "__name__", None) or str(message)
            return f"{text} ({refused.message})"
