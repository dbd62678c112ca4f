"""Options of the MySQL source."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict

from pydantic import Field, SecretStr

from conduit_py.sdk import Options


class SourceOptions(Options):
    """Which tables, and as which replica of the server."""

    url: SecretStr = Field(description="the database, as mysql://user:password@host:port/name")
    server_id: int = Field(
        ge=1,
        lt=2**32,
        description="the number of this source as a replica; no other replica of the server, and no server, has it",
    )
    tables: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the tables, as `table`, or `database.table` for those of another one; None: all of the database",
    )
    snapshot: Literal["initial", "never"] = Field(
        default="initial", description="first read the rows that are there, while changes stream, or only changes"
    )
    start: str | None = Field(
        default=None,
        pattern=r"^\d+-\d+-\d+(,\d+-\d+-\d+)*$",
        description="the GTIDs after which the first run reads changes, as those of a backup; None: from now on",
    )
    chunk_size: int = Field(default=2000, ge=1, description="how many rows of a table are read at once")
    heartbeat_seconds: float = Field(
        default=10.0, gt=0, description="how often the position moves on if none of the tables changes"
    )
    other_server: Literal["refuse", "follow"] = Field(
        default="refuse",
        description="go on at another server than that of the position: after a fail-over, if it has the same log",
    )
    unlogged_changes: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="what to do with a statement that changes rows of a table without logging them, such as"
        " ALTER TABLE … DROP PARTITION and RENAME TABLE",
    )


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    url: Required[str | SecretStr]
    server_id: Required[int]
    tables: Sequence[str] | None
    snapshot: Literal["initial", "never"]
    start: str | None
    chunk_size: int
    heartbeat_seconds: float
    other_server: Literal["refuse", "follow"]
    unlogged_changes: Literal["refuse", "ignore"]
