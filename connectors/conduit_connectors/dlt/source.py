"""The dlt source: runs a resource or a source of dlt in this process, and goes on from its state."""

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Required, TypedDict, Unpack

from pydantic import Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from conduit_connectors.dlt.row_values import plain_row, rows_of
from conduit_py import sdk
from conduit_py.sdk import (
    EndOfSource,
    FatalError,
    Fetched,
    Operation,
    Options,
    Payload,
    Record,
    RecordRefused,
    SourceCheckpoint,
    UnreadableRecord,
    metadata,
)

if TYPE_CHECKING:
    from conduit_connectors.dlt.extraction import Extraction, Page

_ROWS_PER_CHECKPOINT = 100
"""Of a resource that yields single rows: its state is written out after each so many."""


class SourceOptions(Options):
    """Which resource, and how its state is to be understood."""

    resource: str | Callable[..., Any] = Field(
        description="the function that makes the dlt resource or source, or where it is, as `module:function`"
    )
    arguments: dict[str, Any] = Field(default={}, description="what the function is called with")
    secret_arguments: dict[str, SecretStr] = Field(default={}, description="what of the arguments is secret")
    select: list[str] | None = Field(
        default=None, min_length=1, description="the resources of a source to read; None: those that it selects"
    )
    in_order: bool = Field(
        default=False, description="the state is right after each page, so a restart goes on from the last page"
    )

    @field_validator("resource")
    @classmethod
    def _names_a_function(cls, resource: Any) -> Any:
        if isinstance(resource, str) and not all(part for part in resource.rpartition(":")):
            raise PydanticCustomError(
                "resource", "must be `module:function`", {"suggestion": "such as `shop.orders:new_orders`"}
            )
        return resource


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    resource: Required[str | Callable[..., Any]]
    arguments: dict[str, Any]
    secret_arguments: Mapping[str, str | SecretStr]
    select: list[str] | None
    in_order: bool


class Source(sdk.CheckpointedSource[SourceOptions]):
    """The rows of a dlt resource, or of all selected resources of a dlt source. It runs in this process.

    A position has the state of dlt at the end of the last run and the number of rows since. After a crash the resource
    runs again from that state, and the rows that were delivered are dropped: at-least-once, exactly-once in an
    exactly-once pipeline. If they do not come again as they were, all are given again. No row is skipped. The source
    ends with the resource; a `schedule` runs it again from its last state.

    A state in the middle of a run is not used, because it need not be right: that of an incremental resource has the
    largest value so far, and smaller ones may follow. With `in_order` it is used after each page, so that less is read
    again. The resource must then yield rows in the order of its cursor. It must not change its state before the page
    that the change is about. A cursor that goes back stops the pipeline. It must be a single resource that is not
    parallelized.
    """

    # The positions of rows name the state of their page, and pages differ after a restart.
    repeatable: ClassVar[bool] = False
    requires: ClassVar[Mapping[str, str]] = {"dlt": "conduit-dataflow[dlt]"}

    _extraction: "Extraction | None" = None
    _stopping = False

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def gives(self) -> Any:
        # None of a row that could not be read, or was deleted.
        return dict[str, Any] | None

    def probe(self) -> str:
        try:
            self.resume(None)
            assert self._extraction is not None, "resumed"
            return f"reads {', '.join(each.name for each in self._extraction.resources)}"
        finally:
            self.teardown()

    def resume(self, checkpoint: Any) -> None:
        from conduit_connectors.dlt.extraction import Extraction

        self.teardown()
        self._extraction = Extraction(self._make_resource(), checkpoint)
        self._order = _CursorOrder(self._extraction) if self.options.in_order else None
        self._items = self._read_pages(self._extraction)
        self._waiting: deque[Record | UnreadableRecord | SourceCheckpoint] = deque()

    def fetch(self, n: int) -> Fetched:
        if self._stopping:
            raise EndOfSource
        items: list[Record | UnreadableRecord | SourceCheckpoint] = []
        # A page is not kept back until `n` rows came: the next one may take long.
        for page in self._items if not self._waiting else ():
            self._waiting.extend(page)
            if self._waiting or self._stopping:
                break
        while self._waiting and (len(items) < n or isinstance(self._waiting[0], SourceCheckpoint)):
            items.append(self._waiting.popleft())
        if not items:
            raise EndOfSource
        return items

    def stop(self) -> None:
        # A page that is being read cannot be interrupted. No other one is begun.
        self._stopping = True

    def teardown(self) -> None:
        if self._extraction is not None:
            extraction, self._extraction = self._extraction, None
            extraction.close()

    def _make_resource(self) -> Any:
        import dlt.extract

        function = _import_function(self.options.resource)
        secrets = {name: each.get_secret_value() for name, each in self.options.secret_arguments.items()}
        found = function(**self.options.arguments, **secrets)
        if not isinstance(found, dlt.extract.DltSource | dlt.extract.DltResource):
            raise FatalError(
                f"`resource` made a {type(found).__name__}, which is no resource or source of dlt",
                suggestion="name a function that is decorated with @dlt.resource or @dlt.source",
            )
        if self.options.select is None:
            return found
        if isinstance(found, dlt.extract.DltResource):
            raise FatalError("`select` is for a source of several resources", suggestion="take it out")
        unknown = sorted({*self.options.select} - {*found.resources})
        if unknown:
            raise FatalError(f"there is no resource {unknown[0]!r}; the source has: {', '.join(found.resources)}")
        return found.with_resources(*self.options.select)

    def _read_pages(self, extraction: "Extraction") -> Iterator[list[Record | UnreadableRecord | SourceCheckpoint]]:
        since = 0
        for page in extraction.pages():
            items: list[Record | UnreadableRecord | SourceCheckpoint] = [
                _record(extraction, page, row) for row in rows_of(page.content)
            ]
            since += len(items)
            if self._order is not None:
                self._order.check(page)
                if items and (isinstance(page.content, list) or since >= _ROWS_PER_CHECKPOINT):
                    items.append(SourceCheckpoint(extraction.state()))
                    since = 0
            yield items
        yield [SourceCheckpoint(extraction.state())]


class _CursorOrder:
    """Checks that the rows of an incremental resource come in the order of its cursor.

    A state in the middle of a run would skip the rows that come too late.
    """

    def __init__(self, extraction: "Extraction") -> None:
        resources = extraction.resources
        if len(resources) != 1 or resources[0].is_transformer:
            raise FatalError(
                "`in_order` is for a single resource that is no transformer: the rows of others come in turns",
                suggestion="`select` one of them, or take `in_order` out",
            )
        found: Any = resources[0].incremental
        self._incremental = getattr(found, "incremental", found)
        self._last: Any = None

    def check(self, page: "Page") -> None:
        cursor = self._incremental
        if cursor is None:
            return
        for row in rows_of(page.content):
            value = row.get(cursor.cursor_path) if isinstance(row, Mapping) else None
            if value is None:
                continue
            if self._last is not None and cursor.last_value_func((self._last, value)) != value:
                raise FatalError(
                    f"a row of {page.resource.name!r} has {cursor.cursor_path} {value!r} after one with "
                    f"{self._last!r}, so a restart in the middle would skip rows",
                    suggestion="sort the rows by the cursor, or take `in_order` out",
                )
            self._last = value


def _import_function(resource: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(resource, str):
        return resource
    module, _, name = resource.rpartition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FatalError(
            f"`resource` {resource!r} cannot be imported: {error}",
            suggestion="check the name, and that its module is installed or on PYTHONPATH",
        ) from error
    if not callable(function):
        raise FatalError(f"`resource` {resource!r} is no function")
    found: Callable[..., Any] = function
    return found


def _record(extraction: "Extraction", page: "Page", row: Any) -> Record | UnreadableRecord:
    table = extraction.table(page, row)
    about = {metadata.COLLECTION: table.name}
    try:
        values = plain_row(row)
    except RecordRefused as refusal:
        return UnreadableRecord(Record(metadata=about), str(refusal))
    key = {name: values[name] for name in table.key if name in values}
    # dlt: a column of truth values says it, any other does when it is not null.
    mark = None if table.hard_delete is None else values.get(table.hard_delete)
    if mark is None or mark is False:
        return Record(operation=Operation.CREATE, key=key or None, metadata=about, payload=Payload(after=values))
    return Record(operation=Operation.DELETE, key=key or None, metadata=about, payload=Payload(before=values))
