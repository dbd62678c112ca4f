"""What both lookups share: which field has the key, where the row is put, and what happens without one."""

from typing import Any, Literal, Required, TypeAlias, TypedDict

from pydantic import Field, field_validator

from conduit_py.sdk import Options, Record, RecordRefused, Structured
from conduit_py.sdk.template import FieldPath, RecordPart, field_path_error

Missing: TypeAlias = Literal["keep", "drop", "refuse"]


class LookupOptions(Options):
    """Options of every lookup."""

    key: FieldPath = Field(description="the field of the record whose value is looked up")
    column: str = Field(min_length=1, description="the column of the table that has that value")
    into: FieldPath = Field(description="the field that gets the row that was found")
    columns: list[str] | None = Field(default=None, min_length=1, description="the columns to add; without it, all")
    missing: Missing = Field(
        default="refuse", description="a record without a row: keep it as it is, drop it, or refuse it"
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _split_columns(cls, value: object) -> object:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @field_validator("into")
    @classmethod
    def _check_into(cls, into: FieldPath) -> FieldPath:
        if not into.names or into.part not in (RecordPart.AFTER, RecordPart.KEY, RecordPart.BEFORE):
            raise field_path_error("it must be a field of .Payload.After, .Payload.Before or .Key")
        return into


class LookupArguments(TypedDict, total=False):
    """LookupOptions as a caller writes them, for editors and type checkers."""

    key: Required[str | FieldPath]
    column: Required[str]
    into: Required[str | FieldPath]
    columns: list[str] | None
    missing: Missing


def enrich(record: Record, row: Structured | None, options: LookupOptions, value: Any) -> Record | None:
    """Put the row into the record; without one, do what `missing` says. It is refused by raising."""
    if row is not None:
        options.into.set(record, row)
        return record
    if options.missing == "refuse":
        raise RecordRefused(f"there is no row with {options.column} = {str(value)[:100]!r}")
    return record if options.missing == "keep" else None
