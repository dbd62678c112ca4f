"""`field.convert` changes the type of a field."""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Required, TypeAlias, Unpack

from pydantic import BeforeValidator, Field

from conduit_processors.field.conversion import CONVERSIONS
from conduit_processors.field_processor import FieldArguments, FieldOptions, FieldProcessor, Inner
from conduit_py.sdk.template import FieldPath

TypeName: TypeAlias = Literal["string", "int", "float", "bool", "time", "decimal"]
PythonType: TypeAlias = type[str] | type[int] | type[float] | type[bool] | type[datetime] | type[Decimal]

_PYTHON_TYPES: dict[object, str] = {
    str: "string",
    int: "int",
    float: "float",
    bool: "bool",
    datetime: "time",
    Decimal: "decimal",
}


def _type_name(value: object) -> object:
    return _PYTHON_TYPES.get(value, value) if isinstance(value, type) else value


class ConvertOptions(FieldOptions):
    """Options of field.convert."""

    field: Inner = Field(description="the field to convert: inside .Key, .Payload.Before or .Payload.After")
    type: Annotated[TypeName, BeforeValidator(_type_name)] = Field(
        description="string, int, float, bool, time or decimal; or the Python type"
    )


class ConvertArguments(FieldArguments, total=False):
    """ConvertOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]
    type: Required[TypeName | PythonType]


class Convert(FieldProcessor[ConvertOptions]):
    """Converts a field to another type and loses nothing: a value that does not fit is refused.

    Null stays null. `CONVERSIONS` has the rules.
    """

    _convert: Callable[[Any], Any]

    def __init__(self, **options: Unpack[ConvertArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        super().open()
        self._convert = CONVERSIONS[self.options.type]

    def change(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._convert(value)
        except ValueError as error:
            raise self.refusal(f"cannot become {self.options.type}: {error}") from None
