"""World: one way to run a pipeline, on one machine or on Spark, between files that look the same for all of them."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from conduit_connectors import file, objects, postgres
from conduit_connectors.objects.staged_parts import PartManifest

from conduit_py import pipeline as p
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.record import Record
from conduit_py.sdk.processor import processor
from conduit_py.status import PipelineState
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store

Supervise = Callable[[p.Pipeline, Store], Supervisor]

STAGED = "spark-staged"
"""Spark whose executors stage what is written."""
WAYS = ("trio", "spark", "spark-prepared", STAGED)
"""One machine; Spark with a driver that writes record by record; Spark whose executors make ready or stage it."""
TABLES = "spark-tables"
"""The last one, in staging tables of a database."""
EVERY_WAY = pytest.mark.parametrize("world", [*WAYS, TABLES], indirect=True)
"""For tests in which the way of writing matters: all others run in four ways."""
PART_SIZE = 2000
"""Bytes of input: small enough that a file of a test has several parts, and a transaction several bundles."""


class OneByOne(file.Destination):
    """The file destination, if it could not be prepared elsewhere: so are most destinations."""

    def prepares(self, *, exactly_once: bool) -> bool:
        return False


class Table(postgres.Destination):
    """A table, declared as the other destinations are."""

    def __init__(self, *, format: str = "json", **options: Any) -> None:
        super().__init__(**options)


class World:
    """A folder with the input and the output of pipelines that all run the same way."""

    def __init__(self, way: str, folder: Path, supervise: Supervise, database: str = "") -> None:
        self.way = way
        self._database = database
        self.folder = folder
        self._supervise = supervise

    @property
    def on_spark(self) -> bool:
        return self.way != "trio"

    @property
    def prepares(self) -> bool:
        return self.way in ("spark-prepared", STAGED, TABLES)

    def supervisor(self, pipeline: p.Pipeline, store: Store | None = None) -> Supervisor:
        return self._supervise(pipeline, store or MemoryStore())

    async def run(self, pipeline: p.Pipeline, store: Store | None = None) -> PipelineState:
        return await self.supervisor(pipeline, store).run()

    def pipeline(self, *processors: Any, **more: Any) -> p.Pipeline:
        """From the file `in` through these to the file `out`, with dead letters in a file, by default."""
        ends: dict[str, Any] = {
            "sources": [self.source()],
            "destinations": [self.destination()],
            "dead_letters": self.dead_letters(),
        }
        return p.Pipeline("numbers", processors=processors, **(ends | more))

    def source(self, id: str = "in", **more: Any) -> p.Source:
        return p.Source(id, file.Source(path=self.path(id), format="json"), **more)

    def destination(self, id: str = "out", kind: Any = None, **more: Any) -> p.Destination:
        """A file, written in the way of this world; of a kind that a test has made of `self.kind`.

        Where executors stage, it is a folder of files, or a table.
        """
        place: dict[str, Any] = {"path": self.path(id)}
        if self.way == STAGED:
            place = {"url": str(self.path(id))}
        elif self.way == TABLES:
            place = {"url": self._database, "table": id}
        return p.Destination(id, (kind or self.kind)(format="json", **place), **more)

    @property
    def kind(self) -> type[file.Destination] | type[objects.Destination] | type[Table]:
        if self.way == STAGED:
            return objects.Destination
        if self.way == TABLES:
            return Table
        return OneByOne if self.way == "spark" else file.Destination

    def dead_letters(self, **more: Any) -> p.DeadLetters:
        return p.DeadLetters(file.Destination(path=self.path("dead"), format="json"), **more)

    def path(self, id: str) -> Path:
        return self.folder / f"{id}.jsonl"

    def write(self, numbers: Iterable[int], id: str = "in") -> None:
        with self.path(id).open("a") as lines:
            lines.writelines(json.dumps({"n": n}) + "\n" for n in numbers)

    def rows(self, id: str = "out") -> list[Any]:
        path = self.path(id)
        if self.way == TABLES and not path.exists():
            return self._rows_of_table(id)
        files = sorted(path.glob("part-*")) if path.is_dir() else [path] if path.exists() else []
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def numbers(self, id: str = "out") -> list[int]:
        return [row["n"] for row in self.rows(id)]

    def staged(self) -> list[str]:
        """What executors have staged and nobody has made visible or removed."""
        if self.way != TABLES:
            return [path.name for path in self.folder.glob("*.jsonl/_conduit/*/*")]
        with psycopg.connect(self._database) as connection:
            found = connection.execute("SELECT relname FROM pg_class WHERE relname ~ '^conduit_stage_' ORDER BY 1")
            return [name for (name,) in found]

    def declare(self, id: str, columns: str) -> None:
        """Create the table of a destination, if it is one: records of several shapes have no first one."""
        if self.way == TABLES:
            with psycopg.connect(self._database) as connection:
                connection.execute(f'CREATE TABLE "{id}" ({columns})'.encode())

    def _rows_of_table(self, name: str) -> list[Any]:
        with psycopg.connect(self._database) as connection:
            if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
                return []
            found = connection.execute(
                f'SELECT json_strip_nulls(row_to_json(t)) FROM "{name}" t ORDER BY ctid'.encode()
            )
            return [row for (row,) in found]

    def block(self, id: str = "out") -> None:
        """Let nothing be written there, until `unblock`: a folder where a file must be, or a file for a folder."""
        path = self.path(id)
        path.touch() if self.way == STAGED else path.mkdir()

    def unblock(self, id: str = "out") -> None:
        path = self.path(id)
        path.rmdir() if path.is_dir() else path.unlink()

    def refused(self) -> list[int]:
        """The numbers of the records in dead letters."""
        return [letter["record"]["payload"]["after"]["n"] for letter in self.rows("dead")]


def lines_of(folder: Path, pieces: Sequence[bytes]) -> bytes:
    """What pieces stand for, if they are lines or manifests: the lines themselves, or those in staged files."""
    return b"".join(_staged_lines(folder, piece) for piece in pieces)


def _staged_lines(folder: Path, piece: bytes) -> bytes:
    try:
        manifest = msgspec.msgpack.decode(piece, type=PartManifest)
    except msgspec.DecodeError:
        return piece
    paths = (path for file in manifest.files for path in folder.glob(f"*/_conduit/*/{file.waits_as}"))
    return b"".join(path.read_bytes() for path in paths)


@processor
def sorted_out(record: Record) -> Record | list[Record] | None:
    """Every third record is filtered, every fifth split, every seventh refused."""
    n = record.payload["n"]
    if n % 7 == 6:
        raise ValueError(f"{n} is no good")
    record.payload["double"] = 2 * n
    if n % 3 == 2:
        return None
    return [record, record.copy()] if n % 5 == 4 else record


def kept(numbers: Sequence[int]) -> list[int]:
    """What `sorted_out` leaves of these."""
    return [n for n in numbers if n % 7 != 6 and n % 3 != 2 for _ in range(2 if n % 5 == 4 else 1)]


def no_good(numbers: Sequence[int]) -> list[int]:
    """What `sorted_out` refuses of these."""
    return [n for n in numbers if n % 7 == 6]
