"""Options of the PostgreSQL source."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict

from pydantic import Field, SecretStr

from conduit_py.sdk import Options


class SourceOptions(Options):
    """Which tables, through which slot and publication."""

    url: SecretStr = Field(description="the database, as postgresql://user:password@host:port/name")
    slot: str = Field(
        pattern=r"^[a-z0-9_]{1,63}$",
        description="the replication slot, which is created when missing; no other pipeline may use it",
    )
    tables: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the tables, as `schema.table`, or `table` for those of public; None: all of the publication",
    )
    publication: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="the publication, which is created for `tables` when missing; None: it is called as the slot",
    )
    snapshot: Literal["initial", "never"] = Field(
        default="initial", description="first read the rows that are there, while changes stream, or only changes"
    )
    chunk_size: int = Field(default=2000, ge=1, description="how many rows of a table are read at once")
    heartbeat_seconds: float = Field(
        default=10.0, gt=0, description="how often the slot moves on if none of the tables changes"
    )


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    slot: Required[str]
    tables: Sequence[str] | None
    publication: str | None
    snapshot: Literal["initial", "never"]
    chunk_size: int
    heartbeat_seconds: float
