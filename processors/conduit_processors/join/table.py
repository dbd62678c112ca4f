"""`join.table` adds to each record of a stream the row that another source gave last for its key."""

from typing import Any, ClassVar, Literal, Required, TypedDict, Unpack

from pydantic import Field

from conduit_processors.exact_value import from_state, to_state
from conduit_processors.record_key import key_of
from conduit_py.sdk import FatalError, Operation, Options, Processor, Record, RecordRefused, State
from conduit_py.sdk.template import FieldPath


class TableOptions(Options):
    """Options of join.table."""

    table: str = Field(min_length=1, description="the id of the source whose records are the rows of the table")
    table_key: FieldPath = Field(
        default_factory=lambda: FieldPath.of(".Key"), description="the field of a row that has its key"
    )
    key: FieldPath = Field(description="the field of a record of the stream that has the key of its row")
    into: FieldPath = Field(description="the field that gets the row")
    missing: Literal["keep", "drop", "refuse"] = Field(
        default="refuse", description="a record without a row: keep it as it is, drop it, or refuse it"
    )
    rows_max: int = Field(default=1_000_000, ge=1, description="how many rows may be kept; more are refused")


class TableJoinArguments(TypedDict, total=False):
    """TableOptions as a caller writes them, for editors and type checkers."""

    table: Required[str]
    table_key: str | FieldPath
    key: Required[str | FieldPath]
    into: Required[str | FieldPath]
    missing: Literal["keep", "drop", "refuse"]
    rows_max: int


class Table(Processor[TableOptions]):
    """A stream–table join. Records of the source `table` are kept by their key; a delete removes the row.

    Those of all other sources get the row that is there when they come: a later change of the table does not change
    what was joined. Rows go no further than here.
    """

    blocking = False
    stateful = True
    takes: ClassVar[Any] = Any
    gives: ClassVar[Any] = Any

    def __init__(self, **options: Unpack[TableJoinArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        if not hasattr(self, "state"):
            # Outside of a pipeline, in a test.
            self.state = State()
        known = self.state.sources
        if known and self.options.table not in known:
            raise FatalError(
                f"table={self.options.table!r} is no source of this processor",
                suggestion=f"its sources are {', '.join(sorted(known))}",
            )

    def process(self, record: Record) -> Record | None:
        options = self.options
        if self.state.source == options.table:
            self._keep(record)
            return None
        row = self.state.get(key_of(record, options.key))
        if row is not None:
            options.into.set(record, from_state(row))
            return record
        if options.missing == "refuse":
            raise RecordRefused(f"the table {options.table} has no row for {str(options.key.get(record))[:100]!r}")
        return record if options.missing == "keep" else None

    def state_keys(self, record: Record) -> list[str]:
        options = self.options
        return [key_of(record, options.table_key if self.state.source == options.table else options.key)]

    def _keep(self, record: Record) -> None:
        name = key_of(record, self.options.table_key)
        if record.operation is Operation.DELETE:
            self.state.delete(name)
            return
        if not isinstance(record.payload.after, dict):
            raise RecordRefused("a row of a table must be structured data")
        if len(self.state) >= self.options.rows_max and self.state.get(name) is None:
            raise RecordRefused(f"the table has {len(self.state)} rows, and rows_max={self.options.rows_max}")
        self.state.put(name, to_state(record.payload.after))
