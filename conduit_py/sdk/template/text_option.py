"""TextOption: a type of option that users write as text, such as a field path or a template."""

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
