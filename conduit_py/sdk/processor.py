"""Processor: what happens to records on the way."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Self, TypeAlias, overload

from conduit_py.backoff import Retry
from conduit_py.batch import Batch
from conduit_py.errors import Problem
from conduit_py.record import Record
from conduit_py.sdk.options import Options, Place, place_of_call
from conduit_py.sdk.plugin import OptionsT, Plugin
from conduit_py.sdk.state import State

Result: TypeAlias = Record | list[Record] | Exception | None
"""One record goes on, a list splits, None filters, an exception nacks."""

Condition: TypeAlias = Callable[[Record], bool]


class Processor(Plugin[OptionsT]):
    """Turns each record into one, none or several; raising refuses the record.

    Implement `process`, or `process_batch` to see the records of a batch together. A processor may
    change the record it is given and return it. With `workers` above 1 every worker has a processor
    of its own.
    """

    blocking: ClassVar[bool | None] = None

    stateful: bool = False
    """Whether it remembers things in `state`, which an exactly-once pipeline sets before `open`."""
    state: State

    def open(self) -> Awaitable[None] | None:
        """Get ready. Called once per run, before the first record."""

    def process(self, record: Record) -> Awaitable[Result] | Result:
        """The result for one record."""
        raise NotImplementedError(f"{type(self).__qualname__} must implement process or process_batch")

    def process_batch(self, batch: Batch) -> Awaitable[Sequence[Result]] | Sequence[Result]:
        """One result per record of the batch, in the same order. Overriding this takes the place of `process`."""
        raise NotImplementedError(f"{type(self).__qualname__} must implement process or process_batch")

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once after `open`, even when that failed."""

    @property
    def by_batch(self) -> bool:
        """Whether the runtime calls `process_batch` rather than `process`."""
        return type(self).process_batch is not Processor.process_batch


class FunctionProcessor(Processor[Options]):
    """A Python function as a processor; calling it calls the function, so it can be tested alone."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batch: bool = False,
        state: bool = False,
        name: str | None = None,
        workers: int = 1,
        when: Condition | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._declare({}, place_of_call())
        takes = ["a batch" if batch else "a record", *(["a state"] if state else [])]
        self.problems += _form_problems(function, takes, self.place)
        self.stateful = state
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__).strip("<>")
        self.batch = batch
        self.workers = workers
        self.when = when
        self.retry = retry
        # The runtime calls the function itself: a method in between would cost every record a call.
        setattr(self, "process_batch" if batch else "process", function)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    @property
    def by_batch(self) -> bool:
        return self.batch

    def fresh(self) -> Self:
        return self


def _form_problems(function: Callable[..., Any], takes: list[str], place: Place | None) -> list[Problem]:
    """What can be seen from outside: every call of such a function would fail, and refuse its record."""
    spot = place or (None, None)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return [Problem("", "has a yield, so its calls return no records", "return a list of them", *spot)]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []  # Some functions written in C do not say what they take.
    try:
        signature.bind(*takes)
    except TypeError as error:
        count = "one argument" if len(takes) == 1 else "two arguments"
        return [Problem("", f"cannot be called with {' and '.join(takes)}: {error}", f"it must take {count}", *spot)]
    return []


@overload
def processor(function: Callable[..., Any], /) -> FunctionProcessor: ...
@overload
def processor(
    *,
    batch: bool = False,
    state: bool = False,
    name: str | None = None,
    workers: int = 1,
    when: Condition | None = None,
    retry: Retry | None = None,
) -> Callable[[Callable[..., Any]], FunctionProcessor]: ...
def processor(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function a processor, as `@processor` or with settings as `@processor(batch=True, workers=4)`.

    The function takes a record and returns a record, None (filter) or a list of records (split), or
    raises (nack). With `batch=True` it takes a batch and returns one such result per record, where an
    exception in place of a result nacks that record alone. With `state=True`, in an exactly-once
    pipeline, it is given a `State` as its second argument. It may be async.
    """
    if function is None:
        return lambda wrapped: FunctionProcessor(wrapped, **settings)
    if not callable(function) or inspect.isclass(function):
        raise TypeError("@processor takes a function; write a class as `class Name(conduit_py.sdk.Processor)`")
    return FunctionProcessor(function, **settings)
