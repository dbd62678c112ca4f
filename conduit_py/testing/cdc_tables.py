"""The tables of the CDC kit: the load that changes them, as a seed decides, and what must hold of a copy of them.

`cdc_rows` has rows that change, each with a checksum of its values. Every transaction adds a row to `cdc_ledger`, with
its number and with what it adds to the sum of `amount`. It also counts up two rows of `cdc_markers`, one with its first
statement and one with its last. So a look at a copy alone shows a gap, a torn transaction and a mangled value.
"""

import hashlib
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Tables: TypeAlias = dict[str, dict[int, Row]]
"""The rows of each table by their id."""

TABLES = ("cdc_rows", "cdc_ledger", "cdc_markers")
ANCHOR = 1_000_000_000
"""The highest id of each table, of a row that never changes: a snapshot in the order of keys reads it last."""
WRITERS = 2
KEYS = 100
"""How many ids the rows of a writer may have. At first half of them exist."""
SIZES = (1, 2, 3, 8)
"""How many changes a transaction has, unless it is a large one."""
LARGE_SIZE = 200
PAUSE_SECONDS = 0.05
LEAD_MAX = 40
"""How many transactions a writer may be ahead of the copy: on a slow machine the load is slower too."""
_SHOWN = 60
TEXTS = (None, "", "plain", 'it\'s "quoted" \\ %s ? ${x}', "two\nlines\t", "žluť 猫 🜁", " spaces ", "NULL", "\\x00")


@dataclass(frozen=True, kw_only=True)
class CdcDatabase:
    """What differs between databases: the kit writes its load to one, and can read its copy from one."""

    connect: Callable[[], Any]
    """Return a connection of DB-API 2.0 that commits only on `commit()`."""
    away: type[Exception] | tuple[type[Exception], ...]
    """What a statement raises while the server is away, or has chosen it to resolve a conflict."""
    types: Mapping[str, str]
    """The types of columns for `integer` (64 bits) and `text`, and for `bytes`, `decimal` and `time` if it has them."""
    begin_look: str
    """The statement that begins a transaction whose reads all see one state."""
    setup: Sequence[str] = ()
    """Statements that follow the creation of the tables."""
    parameter: str = "%s"
    """How a statement marks a value."""
    restart: Callable[[], None] | None = None
    """Kill the server and start it again. None if there is no server."""
    moves_large_values: bool = True
    """False if a changed key needs the large values written too, because the source cannot get them otherwise."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns of `cdc_rows` that have values, with their kinds."""
        optional = {"data": "bytes", "price": "decimal", "moment": "time"}
        used = {name: kind for name, kind in optional.items() if kind in self.types}
        return {"amount": "integer", "note": "text", "body": "large", **used}

    def create_tables(self) -> None:
        """Create the tables of the kit, empty: in the origin, and in a copy that the pipeline does not create."""
        integer, text = self.types["integer"], self.types["text"]
        values = "".join(f", {name} {self.types.get(kind, text)}" for name, kind in self.columns.items())
        with self.transaction() as connection:
            for statement in (
                f"CREATE TABLE cdc_rows (id {integer} PRIMARY KEY, version {integer}{values}, checksum {text})",
                f"CREATE TABLE cdc_ledger (id {integer} PRIMARY KEY, writer {integer}, n {integer}, delta {integer})",
                f"CREATE TABLE cdc_markers (id {integer} PRIMARY KEY, n {integer})",
                *self.setup,
            ):
                self.execute(connection, statement)

    def add_column(self, name: str) -> None:
        """Add a column of whole numbers to `cdc_rows`."""
        with self.transaction() as connection:
            self.execute(connection, f"ALTER TABLE cdc_rows ADD COLUMN {name} {self.types['integer']}")

    def read(self) -> Tables:
        """All rows, in one consistent look."""
        with self.transaction() as connection:
            self.execute(connection, self.begin_look)
            return {table: {row["id"]: row for row in self.select(connection, table)} for table in TABLES}

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection for one transaction, which is committed at the end."""
        with closing(self.connect()) as connection:
            yield connection
            connection.commit()

    def select(self, connection: Any, table: str) -> list[Row]:
        cursor = self.execute(connection, f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        # Some drivers give bytes as a view or as an array.
        return [
            {name: bytes(value) if isinstance(value, memoryview | bytearray) else value for name, value in pairs}
            for pairs in (zip(names, values, strict=True) for values in cursor.fetchall())
        ]

    def execute(self, connection: Any, statement: str, *values: Any) -> Any:
        cursor = connection.cursor()
        if values:
            cursor.execute(statement.format(*[self.parameter] * len(values)), values)
        else:
            cursor.execute(statement)
        return cursor


class CdcWriter:
    """One of the writers of the load. It alone changes its rows, so it has them in memory too.

    After an error it reads them again: only the database can tell whether a commit took place.
    """

    def __init__(self, database: CdcDatabase, seed: int, index: int) -> None:
        self._database = database
        self._rng = random.Random(f"{seed} {index}")
        self._index = index
        self._rows: dict[int, Row] = {}
        self.number = 0
        """Of its last transaction."""
        self.number_max = LEAD_MAX
        """It waits before it goes on after this transaction."""

    def fill(self) -> None:
        """Insert the first rows, in one transaction, and the anchors."""
        with self._database.transaction() as connection:
            if self._index == 0:
                anchor = {"id": ANCHOR, "version": 0}
                self._insert(connection, "cdc_rows", anchor | {"checksum": checksum_of(anchor)})
                self._insert(connection, "cdc_ledger", {"id": ANCHOR, "writer": -1, "n": 0, "delta": 0})
                self._insert(connection, "cdc_markers", {"id": ANCHOR, "n": 0})
            for marker in (self._index * 2, self._index * 2 + 1):
                self._insert(connection, "cdc_markers", {"id": marker, "n": 0})
            self._transact(connection, ["insert"] * (KEYS // 2))

    def run(self, ended: threading.Event) -> None:
        """Change rows until the event is set."""
        database = self._database
        while not ended.is_set():
            try:
                with closing(database.connect()) as connection:
                    self._read_rows(connection)
                    while not ended.wait(PAUSE_SECONDS):
                        if self.number < self.number_max:
                            self._transact(connection, self._draw_operations())
                        if self._rng.random() < 0.02:
                            self._read_rows(connection)  # a column may have been added
            except database.away:
                ended.wait(PAUSE_SECONDS)

    def _read_rows(self, connection: Any) -> None:
        rows, ledger = (self._database.select(connection, table) for table in ("cdc_rows", "cdc_ledger"))
        connection.rollback()
        self._rows = {row["id"]: row for row in rows if row["id"] % WRITERS == self._index and row["id"] != ANCHOR}
        self.number = max(row["n"] for row in ledger if row["writer"] == self._index)

    def _draw_operations(self) -> list[str]:
        size = LARGE_SIZE if self._rng.random() < 0.01 else self._rng.choice(SIZES)
        return self._rng.choices(("insert", "update", "move", "delete", "savepoint"), (4, 10, 2, 3, 1), k=size)

    def _transact(self, connection: Any, operations: Sequence[str]) -> None:
        execute, before, number = self._database.execute, self._rows, self.number + 1
        self._rows = dict(before)
        first, last = self._index * 2, self._index * 2 + 1
        execute(connection, f"UPDATE cdc_markers SET n = n + 1 WHERE id = {first}")
        for step, operation in enumerate(operations):
            version = number * 10_000 + step
            if operation == "savepoint":
                self._roll_back_to_savepoint(connection, version)
            else:
                self._change(connection, operation, version)
        delta = sum(row["amount"] for row in self._rows.values()) - sum(row["amount"] for row in before.values())
        ledger = {"id": ledger_id(self._index, number), "writer": self._index, "n": number, "delta": delta}
        self._insert(connection, "cdc_ledger", ledger)
        execute(connection, f"UPDATE cdc_markers SET n = n + 1 WHERE id = {last}")
        if number > 1 and self._rng.random() < 0.1:
            connection.rollback()
            self._rows = before
        else:
            connection.commit()
            self.number = number

    def _roll_back_to_savepoint(self, connection: Any, version: int) -> None:
        before = dict(self._rows)
        self._database.execute(connection, "SAVEPOINT cdc")
        for operation in self._rng.choices(("insert", "update", "move", "delete"), k=3):
            self._change(connection, operation, version)
        self._database.execute(connection, "ROLLBACK TO SAVEPOINT cdc")
        self._rows = before

    def _change(self, connection: Any, operation: str, version: int) -> None:
        rng, rows = self._rng, self._rows
        free = [key for key in range(self._index, KEYS * WRITERS, WRITERS) if key not in rows]
        if (operation == "insert" and free) or not rows:
            drawn = {name: self._draw(kind) for name, kind in self._database.columns.items()}
            self._insert(connection, "cdc_rows", self._keep({"id": rng.choice(free), "version": version, **drawn}))
        elif operation == "delete":
            self._database.execute(connection, "DELETE FROM cdc_rows WHERE id = {}", key := rng.choice(list(rows)))
            del rows[key]
        else:
            old = rows[rng.choice(list(rows))]
            self._update(connection, old, self._draw_changes(old, free, version, moves=operation == "move"))

    def _draw_changes(self, old: Row, free: list[int], version: int, *, moves: bool) -> Row:
        rng, columns = self._rng, self._database.columns
        # Columns that were added to the table are known from what was read.
        columns = columns | {name: "integer" for name in old if name.startswith("added")}
        chosen = {name: self._draw(columns[name]) for name in rng.sample(sorted(columns), k=2)}
        if moves and free:
            chosen["id"] = rng.choice(free)
            if not self._database.moves_large_values:
                chosen.setdefault("body", old["body"])
        return {"version": version} | chosen

    def _update(self, connection: Any, old: Row, changes: Row) -> None:
        del self._rows[old["id"]]
        new = self._keep(old | changes)
        changes["checksum"] = new["checksum"]
        assignments = ", ".join(f"{name} = {{}}" for name in changes)
        statement = f"UPDATE cdc_rows SET {assignments} WHERE id = {{}}"
        self._database.execute(connection, statement, *changes.values(), old["id"])

    def _insert(self, connection: Any, table: str, row: Row) -> None:
        statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(['{}'] * len(row))})"
        self._database.execute(connection, statement, *row.values())

    def _keep(self, row: Row) -> Row:
        row = row | {"checksum": checksum_of(row)}
        self._rows[row["id"]] = row
        return row

    def _draw(self, kind: str) -> Any:
        rng = self._rng
        match kind:
            case "integer":
                return rng.randrange(-(10**6), 10**6)
            case "text":
                return rng.choice(TEXTS)
            case "large":
                # Random, so that no compression keeps it in its row.
                return rng.randbytes(1200).hex()
            case "bytes":
                return rng.randbytes(rng.choice((0, 1, 40)))
            case "decimal":
                return Decimal(rng.randrange(-(10**12), 10**12)).scaleb(-6)
            case _:
                # Without a zone, as the column has none.
                return datetime(2000, 1, 1) + timedelta(microseconds=rng.randrange(10**15))  # noqa: DTZ001


def ledger_id(writer: int, number: int) -> int:
    """The id in `cdc_ledger` of a transaction of a writer: the later, the lower.

    So a snapshot in the order of keys has passed it, and ends. Writers go on as fast as their changes arrive: if later
    rows were ahead of it, every chunk would have to be larger than what a slow pipeline delivers meanwhile.
    """
    return ANCHOR - number * WRITERS + writer


def checksum_of(row: Row) -> str:
    """What `checksum` of this row must be. Columns without a value do not count, so that one may be added."""
    values = sorted((name, value) for name, value in row.items() if value is not None and name != "checksum")
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def first_difference(origin: Tables, copy: Tables) -> str | None:
    """The first row that is not the same on both sides, and what both have."""
    for table in TABLES:
        ours, theirs = origin[table], copy[table]
        differing = [key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)]
        if differing:
            key = differing[0]
            one, other = ours.get(key), theirs.get(key)
            return (
                f"{len(differing)} rows of {table} differ. The first has the id {key}\n"
                f"  origin: {_show(one, other)}\n  copy:   {_show(other, one)}"
            )
    return None


def find_mangled(copy: Tables) -> str | None:
    """A row whose values do not have its checksum."""
    for key, row in copy["cdc_rows"].items():
        if row["checksum"] != checksum_of(row):
            return f"the row {key} of cdc_rows is mangled, its checksum should be {checksum_of(row)}: {_show(row)}"
    return None


def find_gap(copy: Tables) -> str | None:
    """A transaction that is missing, although one that followed it is there."""
    numbers = defaultdict(set)
    for row in copy["cdc_ledger"].values():
        numbers[row["writer"]].add(row["n"])
    for writer in range(WRITERS):
        missing = set(range(1, max(numbers[writer], default=0))) - numbers[writer]
        if missing:
            return f"transaction {min(missing)} of writer {writer} is missing, and {max(numbers[writer])} is there"
    return None


def find_torn_pair(copy: Tables) -> str | None:
    """A writer whose last transaction is there with its first statement, and not with its last."""
    markers = {key: row["n"] for key, row in copy["cdc_markers"].items()}
    for writer in range(WRITERS):
        first, last = markers.get(writer * 2), markers.get(writer * 2 + 1)
        if first is not None and last is not None and first != last:
            return f"a transaction of writer {writer} is torn: its first marker is {first}, and its last is {last}"
    return None


def find_torn_sum(copy: Tables) -> str | None:
    """A writer whose rows do not have the sum that its transactions give."""
    for writer in range(WRITERS):
        rows = [row for key, row in copy["cdc_rows"].items() if key % WRITERS == writer and key != ANCHOR]
        ledger = [row for row in copy["cdc_ledger"].values() if row["writer"] == writer]
        total, wanted = sum(row["amount"] for row in rows), sum(row["delta"] for row in ledger)
        if total != wanted:
            last = max((row["n"] for row in ledger), default=0)
            return f"transaction {last} of writer {writer} is torn: the sum of its rows is {total}, not {wanted}"
    return None


def find_step_back(before: Tables, now: Tables) -> str | None:
    """A row that has an older version than in the look before."""
    for key, row in now["cdc_rows"].items():
        older = before["cdc_rows"].get(key)
        if older is not None and row["version"] < older["version"]:
            return f"the row {key} of cdc_rows went back\n  from: {_show(older, row)}\n  to:   {_show(row, older)}"
    return None


def _show(row: Row | None, other: Row | None = None) -> str:
    """The row, or those of its values that the other does not have, each cut to a readable length."""
    if row is None:
        return "no such row"
    shown = {name: value for name, value in row.items() if other is None or other.get(name) != value}
    return ", ".join(f"{name}={_cut(value)}" for name, value in shown.items())


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
