"""Options that users write as text, such as field paths and templates, and the errors in such a text."""

from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class TextOption:
    """A value parsed from text by `of` and written down again by `str`; the two are inverse.

    Options may be declared of such a type. In JSON and in its schema it is text.
    """

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Self:
        """The value for what a user wrote, which may be such a value already; anything else raises ValueError."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(str(self))


def option_error(message: str, suggestion: str | None = None) -> ValueError:
    """An error to raise while options are checked. The message says what must be; what was written is added to it."""
    # Passed as a value, because pydantic's message is a format string and ours may contain braces.
    return PydanticCustomError("option", "{message}", {"message": message, "suggestion": suggestion})


class TemplateInvalid(ValueError):
    """What is wrong with a template; `offset` is the character of its text, counted from 0."""

    def __init__(self, message: str, offset: int, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.suggestion = suggestion

    def line(self, text: str) -> int:
        """The line of the text that is wrong, counted from 0."""
        return text.count("\n", 0, self.offset)

    def describe(self, text: str) -> str:
        """The message with the place in the text, as a person counts: characters of a line from 1."""
        start = text.rfind("\n", 0, self.offset) + 1
        return f"{self.message}, at character {self.offset - start + 1}"


class FieldPathInvalid(ValueError):
    """Why names or a text are no path to a field of a record."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
