"""Lakes whose files tasks of Spark stage: a table of Delta or of Iceberg in a folder, a driver of it, and its tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from builders import batch_of
from conduit_connectors import delta, iceberg
from conduit_connectors.lake_parts import LakeDestination
from deltalake import DeltaTable
from lake_tables import catalog_of, iceberg_rows, iceberg_table

from conduit_py.sdk import PartId

COLUMNS = {"n": "long", "name": "string"}


class Lake(Protocol):
    """A table, and what a reader and an operator see of it."""

    folder: Path

    def declare(self, **options: Any) -> LakeDestination[Any]: ...

    def numbers(self) -> list[int]: ...

    def commits(self) -> int: ...


class DeltaLake:
    """A Delta table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "t"

    def declare(self, **options: Any) -> delta.Destination:
        return delta.Destination(**{"path": str(self.folder), "columns": COLUMNS, **options})

    def numbers(self) -> list[int]:
        rows: list[int] = DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist()
        return sorted(rows)

    def commits(self) -> int:
        return DeltaTable(self.folder).version()


class IcebergLake:
    """An Iceberg table in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._catalog = catalog_of(folder)

    def declare(self, **options: Any) -> iceberg.Destination:
        return iceberg.Destination(**{"table": "db.t", "catalog": self._catalog, "columns": COLUMNS, **options})

    def numbers(self) -> list[int]:
        return [row["n"] for row in iceberg_rows(self.folder)]

    def commits(self) -> int:
        return len(iceberg_table(self.folder).metadata.snapshots)


def driver(lake: Lake, fence: int | None = None, intents: Sequence[bytes] = (), **options: Any) -> LakeDestination[Any]:
    made = lake.declare(**options).fresh()
    made.open()
    if fence is not None:
        made.begin("p", fence, intents)
    return made


def attempt(declared: LakeDestination[Any], grant: bytes, number: int, *rows: Any) -> bytes:
    """One attempt of a task at a part, with what it returns to the driver."""
    task = declared.fresh()
    try:
        task.open_part(grant, PartId(0, number))
        assert not task.prepare(batch_of(*rows))
        return task.prepared()
    finally:
        task.discard_part()


def commit(live: LakeDestination[Any]) -> bytes:
    intent = live.stage()
    assert isinstance(intent, bytes)
    live.apply(intent)
    return intent


def n(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number, "name": f"order {number}"} for number in numbers]


def hidden(lake: Lake) -> list[Path]:
    return [path for path in lake.folder.rglob("_conduit/*/*") if path.is_file()]


def parts(lake: Lake) -> list[Path]:
    """What tasks have staged, without what lets them do so."""
    return [path for path in hidden(lake) if not path.name.endswith(".grant.parquet")]


def data_files(lake: Lake) -> list[Path]:
    return [path for path in lake.folder.rglob("*.parquet") if "_conduit" not in path.parts]
