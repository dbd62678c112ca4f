"""`filter` drops every record it sees; `filter.keep` and `filter.drop` decide by a condition of their own."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from conduit_py.sdk import Options, Processor, Record
from conduit_py.sdk.template import condition_option, option_error


class Filter(Processor[Options]):
    """Drops every record it sees; `Processor(id, Filter(), when=…)` chooses which."""

    blocking = False

    def process(self, record: Record) -> None:
        """Nothing goes on; the record counts as handled."""


def _condition(value: object) -> Callable[[Record], Any]:
    # The coroutine that an async one returns would count as true.
    if inspect.iscoroutinefunction(value):
        raise option_error("must answer at once: write a plain function, not an async one")
    return value if callable(value) else condition_option(value)


class ConditionOptions(Options):
    """Options of filter.keep and filter.drop."""

    condition: Annotated[
        Any, BeforeValidator(_condition), PlainSerializer(str, when_used="json"), WithJsonSchema({"type": "string"})
    ] = Field(description="an expression in CEL such as payload.amount > 100, a template, or a function of the record")


class _Conditional(Processor[ConditionOptions]):
    blocking = False
    _condition: Callable[[Record], Any]

    def __init__(self, condition: str | Callable[[Record], Any]) -> None:
        super().__init__(condition=condition)

    def open(self) -> None:
        self._condition = self.options.condition


class Keep(_Conditional):
    """Sends on the records for which the condition is true and drops the others, which count as handled.

    A record for which the condition is neither true nor false, such as one that lacks the field, is refused.
    An expression in CEL needs `conduit-dataflow[cel]`; a template and a function need nothing.
    """

    def process(self, record: Record) -> Record | None:
        return record if self._condition(record) else None


class Drop(_Conditional):
    """Drops the records for which the condition is true, which count as handled, and sends on the others.

    A record for which the condition is neither true nor false, such as one that lacks the field, is refused.
    An expression in CEL needs `conduit-dataflow[cel]`; a template and a function need nothing.
    """

    def process(self, record: Record) -> Record | None:
        return None if self._condition(record) else record
