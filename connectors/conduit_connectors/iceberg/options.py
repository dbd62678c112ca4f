"""The options of the Iceberg destination."""

from collections.abc import Mapping, Sequence
from typing import Literal, Required

from pydantic import Field, SecretStr, model_validator

from conduit_connectors.policy_options import PolicyArguments, PolicyOptions


class DestinationOptions(PolicyOptions):
    """Options of the Iceberg destination."""

    table: str = Field(pattern=r"[^.].*\.[^.]+", description='the table with its namespace: "sales.orders"')
    catalog: dict[str, SecretStr] = Field(
        default={},
        description='the catalog as pyiceberg describes it: {"type": "rest", "uri": "http://…"}; its "name" may be one'
        " of .pyiceberg.yaml",
    )
    mode: Literal["append", "upsert"] = Field(
        default="append", description="add every record, or have one row per key: insert, update or delete it"
    )
    key: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the columns of the key for upsert; None: the fields of the record's key",
    )
    columns: dict[str, str] | None = Field(
        default=None,
        min_length=1,
        description='to create a table that is missing: its columns in Iceberg\'s types, {"id": "long", "at": "date"}',
    )
    partition_by: list[str] = Field(
        default=[], description='how a table that is created is partitioned: ["region", "day(at)", "bucket(16, id)"]'
    )
    rows_max: int = Field(default=100_000, ge=1, description="how many rows are held in memory before they are a file")

    @model_validator(mode="after")
    def _key_is_for_upsert(self) -> "DestinationOptions":
        if self.key is not None and self.mode != "upsert":
            raise ValueError('`key` has a meaning with mode="upsert" only')
        return self


class DestinationArguments(PolicyArguments, total=False):
    """DestinationOptions as a caller writes them, for editors and type checkers."""

    table: Required[str]
    catalog: Mapping[str, str | SecretStr]
    mode: Literal["append", "upsert"]
    key: Sequence[str] | None
    columns: Mapping[str, str] | None
    partition_by: Sequence[str]
    rows_max: int
