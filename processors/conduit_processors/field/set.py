"""`field.set` sets a field to a constant, a template or the result of a function."""

import copy
import inspect
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Required, TypedDict, Unpack

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, field_validator

from conduit_processors.field_processor import Settable
from conduit_py.sdk import Options, Processor, Record, RecordRefused, Unchanged
from conduit_py.sdk.template import FieldPath, RecordPart, Template, is_template, option_error


def _value(value: object) -> object:
    if inspect.iscoroutinefunction(value):
        raise option_error("must not be an async function; write a processor for that")
    return Template.of(value) if isinstance(value, str) and is_template(value) else value


def _serialize(value: object) -> object:
    return str(value) if isinstance(value, Template) else value


class SetOptions(Options):
    """Options of field.set."""

    field: Settable = Field(description="what to set: anything but .Position; a field that is not there is made")
    value: Annotated[Any, BeforeValidator(_value), PlainSerializer(_serialize)] = Field(
        description="a constant, a template such as {{ .Payload.After.name | upper }}, or a function of the record"
    )

    @field_validator("value", mode="after")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        if "field" in info.data and not isinstance(value, Template) and not callable(value):
            try:
                info.data["field"].set(Record(), copy.deepcopy(value))
            except RecordRefused as refused:
                raise option_error(f"must be what {info.data['field']} can hold ({refused.message})") from None
        return value


class SetArguments(TypedDict, total=False):
    """SetOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]
    value: Required[Any]


class Set(Processor[SetOptions]):
    """Sets a field, making it and the structured data around it where they are absent.

    A template gives text. Any other constant is copied for every record. A function is called with the record and
    returns the value.
    """

    blocking = False
    _set: Callable[[Record, Any], None]
    _value: Callable[[Record], Any]

    def __init__(self, **options: Unpack[SetArguments]) -> None:
        super().__init__(**options)

    @property
    def takes(self) -> Any:
        field = self.options.field
        return dict | None if field.part is RecordPart.AFTER and field.names else Any

    @property
    def gives(self) -> Any:
        field = self.options.field
        if field.part is not RecordPart.AFTER:
            return Unchanged
        # As a whole it is what a template or function makes of it.
        return dict if field.names else Any

    def open(self) -> None:
        self._set = self.options.field.set
        self._value = _maker(self.options.value)

    def process(self, record: Record) -> Record:
        self._set(record, self._value(record))
        return record


def _maker(value: Any) -> Callable[[Record], Any]:
    if isinstance(value, Template):
        return value.render
    if callable(value):
        return value  # type: ignore[no-any-return]
    if value is None or isinstance(value, (str, bytes, int, float, Decimal, datetime)):
        return lambda record: value
    return lambda record: copy.deepcopy(value)
