"""Rewrite: a processor that puts another value in the place of one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field

from conduit_processors.reference import Reference
from conduit_processors.spelling import Root
from conduit_py.sdk import Options, Processor, Record, RecordRefused


class FieldOptions(Options):
    """Options of a processor that works on one field."""

    field: Reference = Field(description="the field to work on")


FieldOptionsT = TypeVar("FieldOptionsT", bound=FieldOptions)


class Rewrite(Processor[FieldOptionsT], ABC):
    """Replaces the value at `field` by what `change` makes of it; a record without the field is refused.

    Null and absent values stay as they are.
    """

    blocking = False
    whole: bool
    """The field is a key or a payload as a whole, which hold raw bytes or structured data and nothing else."""
    _after: bool
    _update: Callable[[Record, Callable[[Any], Any]], None]
    _change: Callable[[Any], Any]

    def open(self) -> None:
        field = self.options.field
        self.whole = not field.path
        self._after = self.whole and field.root is Root.AFTER
        # Looked up once here: per record, a property and a bound method would cost as much as the work.
        self._update, self._change = field.update, self.change

    def process(self, record: Record) -> Record:
        # The payload is what is changed most, so it is spared a call.
        if self._after:
            payload = record.payload
            payload.after = self._change(payload.after)
        else:
            self._update(record, self._change)
        return record

    @abstractmethod
    def change(self, value: Any) -> Any:
        """The new value for one that may be None; raise `refusal` for one that has none.

        For a key or a payload as a `whole` it must be one that they can hold.
        """

    def refusal(self, reason: str, *, suggestion: str | None = None) -> RecordRefused:
        return RecordRefused(f"{self.options.field}: {reason}", suggestion=suggestion)
