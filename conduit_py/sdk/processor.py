"""Processors: change, filter, split or refuse records. A processor is a class or a function."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from conduit_py.backoff import Retry
from conduit_py.batch import Batch
from conduit_py.errors import Problem
from conduit_py.owned_thread import bridge_to_asyncio
from conduit_py.payload_type import PayloadType
from conduit_py.record import Record
from conduit_py.sdk.function_signature import FunctionSignature
from conduit_py.sdk.plugin import Options, OptionsT, Plugin, collect_keyword_problems, place_of_call
from conduit_py.sdk.state import State

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa
    from pydantic import BaseModel


Result: TypeAlias = Record | list[Record] | Exception | None
"""One record continues, a list splits the record, None filters it, an exception nacks it."""

RecordFunction: TypeAlias = Callable[[Record], Awaitable[Result] | Result]
"""A function that can be a processor without a decorator."""

TableResult: TypeAlias = "pa.Table | pa.RecordBatch | pa.BooleanArray | pa.ChunkedArray | Rows"
"""The table with changes, the rows to keep as booleans, or both and refusals as `Rows`."""

Condition: TypeAlias = Callable[[Record], bool]
StateKeys: TypeAlias = Callable[[Record], Iterable[str]]
"""Which keys of its state a function needs for a record."""

Where: TypeAlias = Literal["thread", "process"]
"""Where the workers of a processor run: in this process, or in a process for each."""


class Processor(Plugin[OptionsT]):
    """Turns each record into one, none or several. A record for which it raises is refused.

    Implement `process`, or `process_batch` to see the records of a batch together, or `process_table` to
    see their fields as Arrow columns. A processor may change the record it is given and return it. With
    `workers` above 1 every worker has a processor of its own.
    """

    blocking: ClassVar[bool | None] = None

    payload_type: PayloadType | None = None
    """The type of payload that `process` takes, or `process_batch` a list of; None if it takes records."""

    @property
    def takes(self) -> Any:
        """The type of `payload.after` that it takes: dict, bytes, a type of the user, None for absent, or a union.

        `check` reports a pipeline in which every record that arrives is refused for its type. Any, the default, is for
        a processor that takes all, or refuses for other reasons.
        """
        return dict if self.by_table else Any

    @property
    def gives(self) -> Any:
        """The type of `payload.after` of all that it returns, or `Unchanged`; Any, the default, if it depends."""
        return dict if self.by_table else Any

    takes_metadata: bool = False
    """True if it takes the metadata of the record too, as an argument of that name."""

    stateful: bool = False
    """True if it uses `state`, which an exactly-once pipeline sets before `open`."""
    state: State

    asyncio: bool = False
    """True if its async methods run on an event loop of asyncio, for libraries that need one; else on trio."""

    defers: bool = False
    """True if it may raise `Defer`; docs/explanation/exactly-once.md explains where that is allowed."""

    def open(self) -> Awaitable[None] | None:
        """Get ready. Called once per run, before the first record."""

    def process(self, record: Record) -> Awaitable[Result] | Result:
        """Return the result for one record."""
        raise NotImplementedError(f"{type(self).__qualname__} must implement process or process_batch")

    def process_batch(self, batch: Batch) -> Awaitable[Sequence[Result]] | Sequence[Result]:
        """Return one result per record of the batch, in the same order. Replaces `process`."""
        raise NotImplementedError(f"{type(self).__qualname__} must implement process or process_batch")

    table_schema: "pa.Schema | None" = None
    """The columns of the table that `process_table` gets; None: every field, with the type of its values."""

    def process_table(self, table: "pa.Table", batch: Batch) -> "Awaitable[TableResult] | TableResult":
        """Return the changed table, a boolean array of the rows to keep, or `Rows`. Row i is the record `batch[i]`.

        Replaces `process`. It may be called again with some of the rows, so the result for a row must not
        depend on the others.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not implement process_table")

    def state_keys(self, record: Record) -> Iterable[str]:
        """Return the keys of `state` that `process` needs for a record, as far as the record tells.

        Only called if the state is larger than its cache: the keys of all records of a batch are then read from the
        store in one step. A key that is not named here is read when it is asked for, which takes longer. An async
        processor cannot wait for it: one that names keys must name all, and one that names none has all in memory.
        """
        return ()

    @property
    def names_state_keys(self) -> bool:
        """True if it has `state_keys`."""
        return getattr(self.state_keys, "__func__", None) is not Processor.state_keys

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once after `open`, even when that failed."""

    def fresh(self) -> Self:
        new = super().fresh()
        new.asyncio = self.asyncio
        return bridge_to_asyncio(new) if self.asyncio else new

    @property
    def by_batch(self) -> bool:
        """True if the runtime calls `process_batch` instead of `process`."""
        return type(self).process_batch is not Processor.process_batch

    @property
    def by_table(self) -> bool:
        """True if the runtime calls `process_table`."""
        return type(self).process_table is not Processor.process_table


class Unchanged:
    """What a processor gives that does not touch `payload.after`: `gives = Unchanged`."""


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Subject: TypeAlias = "Record | Mapping[str, Any] | bytes | msgspec.Struct | BaseModel | _Dataclass"
"""What a function may take: a record, or its payload as a dict, raw bytes, or a type of the user."""
FunctionResult: TypeAlias = "Subject | Sequence[Subject] | Exception | None"

P = ParamSpec("P")
R = TypeVar("R")
SubjectT = TypeVar("SubjectT", bound=Subject)
SubjectsT = TypeVar("SubjectsT", bound=Batch | list[Any])
ResultT = TypeVar("ResultT", bound="Awaitable[FunctionResult] | FunctionResult")
ResultsT = TypeVar("ResultsT", bound="Awaitable[Sequence[FunctionResult]] | Sequence[FunctionResult]")
TableResultT = TypeVar("TableResultT", bound="Awaitable[TableResult] | TableResult")


class FunctionProcessor(Processor[Options], Generic[P, R]):
    """A Python function as a processor. Calling it calls the function, for tests without a pipeline."""

    takes: Any = Any
    gives: Any = Any

    @collect_keyword_problems
    def __init__(
        self,
        function: Callable[P, R],
        *,
        batch: bool = False,
        arrow: "bool | pa.Schema" = False,
        state: bool = False,
        state_keys: StateKeys | None = None,
        defers: bool = False,
        name: str | None = None,
        workers: int = 1,
        where: Where = "thread",
        when: Condition | str | None = None,
        retry: Retry | None = None,
        asyncio: bool = False,
    ) -> None:
        self._declare({}, place_of_call())
        self.arrow = arrow
        self.asyncio = asyncio
        signature = FunctionSignature(function, batch=batch, by_table=self.by_table)
        self.payload_type, self.takes_metadata = signature.payload_type, signature.takes_metadata
        self.takes, self.gives = signature.takes, signature.gives
        self.stateful = state or signature.takes_state
        if state_keys is not None:
            setattr(self, "state_keys", state_keys)  # noqa: B010 - to a type checker it is a method.
        self.problems += signature.problems(self.place, state=self.stateful, names_keys=state_keys is not None)
        self.defers = defers
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__).strip("<>")
        self.batch = batch
        self.workers, self.where = workers, where
        self.when, self.retry = when, retry
        # The runtime calls the function itself: a method in between would cost every record a call.
        setattr(self, "process_table" if self.by_table else "process_batch" if batch else "process", function)
        self.table_schema = None if isinstance(arrow, bool) else arrow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def by_batch(self) -> bool:
        return self.batch

    @property
    def by_table(self) -> bool:
        return self.arrow is not False

    def fresh(self) -> Self:
        # The same object: a function has no attributes that one run could leave to the next.
        return bridge_to_asyncio(copy(self)) if self.asyncio else self


def table_problems(processor: Processor[Any]) -> list[Problem]:
    """The problems of a processor that takes Arrow tables; none for any other processor."""
    if not processor.by_table:
        return []
    spot = getattr(processor, "place", None) or (None, None)
    if find_spec("pyarrow") is None:
        what, hint = "takes Arrow tables, and pyarrow is not installed here", "pip install 'conduit-dataflow[arrow]'"
        return [Problem("arrow", what, hint, *spot)]
    import pyarrow as pa

    problems = []
    schema = processor.table_schema
    if schema is not None and not isinstance(schema, pa.Schema):
        problems.append(Problem("arrow", f"must be True or a pyarrow.Schema, not {schema!r}", None, *spot))
    elif schema is not None and len(set(schema.names)) < len(schema.names):
        problems.append(Problem("arrow", "has two columns of one name", None, *spot))
    if processor.stateful:
        what, hint = "cannot be used with Arrow tables, whose rows may be processed again", "use batch=True instead"
        problems.append(Problem("state", what, hint, *spot))
    return problems


# One signature for each form, so that a type checker refuses a function that takes something else. Only the
# last two have `arrow`: a schema is Any to a checker without types of pyarrow, and Any would match all of them.
@overload
def processor(
    function: Callable[Concatenate[SubjectT, P], ResultT], /
) -> FunctionProcessor[Concatenate[SubjectT, P], ResultT]: ...
@overload
def processor(
    *,
    batch: Literal[False] = False,
    state: bool = False,
    state_keys: StateKeys | None = None,
    defers: bool = False,
    name: str | None = None,
    workers: int = 1,
    where: Where = "thread",
    when: Condition | str | None = None,
    retry: Retry | None = None,
    asyncio: bool = False,
) -> Callable[[Callable[Concatenate[SubjectT, P], ResultT]], FunctionProcessor[Concatenate[SubjectT, P], ResultT]]: ...
@overload
def processor(
    *,
    batch: Literal[True],
    state: bool = False,
    state_keys: StateKeys | None = None,
    defers: bool = False,
    name: str | None = None,
    workers: int = 1,
    where: Where = "thread",
    when: Condition | str | None = None,
    retry: Retry | None = None,
    asyncio: bool = False,
) -> Callable[
    [Callable[Concatenate[SubjectsT, P], ResultsT]], FunctionProcessor[Concatenate[SubjectsT, P], ResultsT]
]: ...
@overload
def processor(
    *,
    batch: Literal[False] = False,
    arrow: "Literal[True] | pa.Schema",
    state: Literal[False] = False,
    name: str | None = None,
    workers: int = 1,
    where: Where = "thread",
    when: Condition | str | None = None,
    retry: Retry | None = None,
    asyncio: bool = False,
) -> Callable[[Callable[["pa.Table"], TableResultT]], FunctionProcessor[["pa.Table"], TableResultT]]: ...
@overload
def processor(
    *,
    batch: Literal[True],
    arrow: "Literal[True] | pa.Schema",
    state: Literal[False] = False,
    name: str | None = None,
    workers: int = 1,
    where: Where = "thread",
    when: Condition | str | None = None,
    retry: Retry | None = None,
    asyncio: bool = False,
) -> Callable[[Callable[["pa.Table", Batch], TableResultT]], FunctionProcessor[["pa.Table", Batch], TableResultT]]: ...
def processor(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a function a processor, as `@processor` or with settings as `@processor(batch=True, workers=4)`.

    The function takes a record and returns a record, None (filter) or a list of records (split), or
    raises (nack). By the type of its first parameter it may take the payload instead, and return payloads: a
    dict, bytes, a TypedDict, a msgspec Struct, a dataclass or a pydantic model. A record that does not fit the type
    is refused, also if it has a field that the type does not have. Further parameters by name are `metadata` and, in
    an exactly-once pipeline, `state: State`. With `batch=True` it takes a batch, or a list of payloads, and returns one
    such result per record. An exception in place of a result nacks that record alone. With `arrow=True` it takes a
    `pyarrow.Table`, which has the fields of payload.after as columns (those of a schema with `arrow=schema`). It
    returns the table changed, or a boolean array of the rows to keep, or `Rows`; with `batch=True` too the batch is its
    second argument. With `state=True`, in an exactly-once pipeline, it is given a `State` as its last argument;
    `state_keys` is that of `Processor`. With `defers=True` too it may raise `Defer`, to have a record in the next
    transaction. It may be async, on trio: a library for asyncio does not work there, one for anyio such as httpx2 does.
    With `asyncio=True` an async function runs on an event loop of asyncio, which all such processors share.
    """
    if function is None:
        return lambda wrapped: FunctionProcessor(wrapped, **settings)
    if not callable(function) or inspect.isclass(function):
        raise TypeError("@processor takes a function; write a class as `class Name(conduit_py.sdk.Processor)`")
    return FunctionProcessor(function, **settings)


@dataclass(frozen=True, eq=False)
class Rows:
    """The result of an Arrow processor that filters or refuses rows. Row i is always the record of row i.

    `table` has all the rows with their changes; without it the records do not change. `keep`, a boolean array,
    filters the rows for which it is not true. `refuse`, an array of texts, refuses the rows that have a text, with it
    as the reason, also where `keep` is true.
    """

    table: "pa.Table | pa.RecordBatch | None" = None
    keep: "pa.BooleanArray | pa.ChunkedArray | None" = None
    refuse: "pa.StringArray | pa.ChunkedArray | None" = None
