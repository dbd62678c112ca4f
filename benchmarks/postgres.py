"""Changes of PostgreSQL, beside a loop by hand on the same client library.

    python -m benchmarks.postgres [--records N] [--rounds N]
    python -m benchmarks.postgres --large N     memory while one transaction of so many rows is read

It starts a server of its own. What the figures mean: `benchmarks.against_loop`. The server's CPU is not counted.

Rows of six columns were inserted, ten in a transaction. Both sides read them from a copy of one slot, by `psycopg.pq`
and pgoutput. Both read the columns of a table from its Relation message, and handle inserts, updates and deletes. They
make a dict of exact Python values of each row. Both have its operation, its table, and the number, place and time of
its transaction. Both give rows to somebody who counts them: the loop a transaction at a time, ours a batch at a time.
Both confirm what they have once a second: the loop's position is the slot's, ours is also in its store.
"""

import argparse
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from json import loads
from struct import Struct
from typing import Any, NamedTuple

import psycopg
import trio
from conduit_connectors import postgres
from psycopg import pq

import conduit_py
from benchmarks.against_loop import Counter, compare
from benchmarks.once import memory_mb
from conduit_py import Destination, Pipeline, Source
from conduit_py.testing.services import PostgresServer

TABLE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(12, 2), placed timestamptz, paid boolean, lines jsonb
)
"""
ROWS = """
INSERT INTO orders
SELECT n, 'c-' || n %% 5000, n %% 10000 / 100.0, now(), n %% 3 = 0, '[1, 2, 3, 4, 5]'
FROM generate_series(%s::bigint, %s::bigint) n
"""
IN_A_TRANSACTION = 10
POLL_SECONDS = 0.01
READERS: dict[int, Callable[[str], Any]] = {
    16: "t".__eq__,
    20: int,
    25: str,
    1184: datetime.fromisoformat,
    1700: Decimal,
    3802: loads,
}
_FRAME = 25
_LENGTH = Struct("!I")
_CHANGE = Struct("!IcH")
_BEGIN = Struct("!QqI")
_STATUS = Struct("!cQQQqB")


class Relation(NamedTuple):
    """A table, and how its columns are read."""

    name: str
    columns: list[tuple[str, Callable[[str], Any]]]


class Change(NamedTuple):
    """What the loop makes of a row."""

    operation: str
    table: str
    begin: tuple[int, int, int]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Bench:
    """A table whose rows are behind a slot, and a copy of the slot for each measurement."""

    def __init__(self, dsn: str, records: int, in_a_transaction: int = IN_A_TRANSACTION) -> None:
        self._dsn = dsn
        self._records = records
        self._run("CREATE PUBLICATION bench FOR ALL TABLES")
        self._run(TABLE)
        self._run("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        with psycopg.connect(dsn, autocommit=True) as connection:
            for first in range(0, records, in_a_transaction):
                connection.execute(ROWS, (first, min(first + in_a_transaction, records) - 1))

    def loop(self) -> None:
        slot = self._copy_of_slot()
        connection = pq.PGconn.connect(f"{self._dsn}?replication=database".encode())
        options = "(proto_version '1', publication_names 'bench')"
        started = connection.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
        assert started.status == pq.ExecStatus.COPY_BOTH, connection.error_message
        arrived, confirmed_at = 0, time.monotonic()
        relations: dict[int, Relation] = {}
        changes: list[Change] = []
        begin = (0, 0, 0)
        while arrived < self._records:
            frame = bytes(connection.get_copy_data(0)[1])
            if frame[:1] != b"w":
                continue
            kind = frame[_FRAME : _FRAME + 1]
            if kind in b"IUD":
                changes.append(_change(kind, frame, relations, begin))
            elif kind == b"B":
                begin = _BEGIN.unpack_from(frame, _FRAME + 1)
            elif kind == b"R":
                oid, relation = _relation(frame)
                relations[oid] = relation
            elif kind == b"C":
                arrived += len(changes)
                changes = []
                if time.monotonic() > confirmed_at + 1:
                    end = int.from_bytes(frame[_FRAME + 10 : _FRAME + 18])
                    connection.put_copy_data(_STATUS.pack(b"r", end, end, end, 0, 0))
                    connection.flush()
                    confirmed_at = time.monotonic()
        connection.finish()
        self._drop(slot)

    def ours(self) -> None:
        slot = self._copy_of_slot()
        trio.run(self._until_all_have_arrived, slot)
        self._drop(slot)

    async def _until_all_have_arrived(self, slot: str) -> None:
        Counter.arrived = 0
        source = postgres.Source(url=self._dsn, slot=slot, publication="bench", snapshot="never")
        pipeline = Pipeline("p", sources=[Source("in", source)], destinations=[Destination("out", Counter())])
        async with conduit_py.running(pipeline) as run:
            while Counter.arrived < self._records:
                assert run.outcome is None, run.outcome
                await trio.sleep(POLL_SECONDS)

    def measure_memory(self) -> None:
        """Print how much more memory the pipeline needs at its peak than this process had before."""
        before = memory_mb("VmRSS")
        self.ours()
        print(f"one transaction of {self._records} rows: {memory_mb('VmHWM') - before:.0f} MiB above {before:.0f} MiB")

    def _copy_of_slot(self) -> str:
        name = f"bench_{uuid.uuid4().hex[:12]}"
        self._run(f"SELECT pg_copy_logical_replication_slot('bench', '{name}')")
        return name

    def _drop(self, slot: str) -> None:
        self._run(f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}'")
        while True:
            try:
                return self._run(f"SELECT pg_drop_replication_slot('{slot}')")
            except psycopg.errors.ObjectInUse:
                time.sleep(POLL_SECONDS)

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement)


def _relation(frame: bytes) -> tuple[int, Relation]:
    (oid,) = _LENGTH.unpack_from(frame, _FRAME + 1)
    schema, name, rest = frame[_FRAME + 5 :].split(b"\0", 2)
    count, at, columns = int.from_bytes(rest[1:3]), 3, []
    for _ in range(count):
        end = rest.index(b"\0", at + 1)
        (type_oid,) = _LENGTH.unpack_from(rest, end + 1)
        columns.append((rest[at + 1 : end].decode(), READERS[type_oid]))
        at = end + 9
    return oid, Relation(f"{schema.decode()}.{name.decode()}", columns)


def _change(kind: bytes, frame: bytes, relations: dict[int, Relation], begin: tuple[int, int, int]) -> Change:
    oid, mark, _ = _CHANGE.unpack_from(frame, _FRAME + 1)
    relation, at = relations[oid], _FRAME + 8
    if kind == b"I":
        row, _ = _row(frame, at, relation)
        return Change("create", relation.name, begin, None, row)
    before, after = None, None
    if mark != b"N":
        before, at = _row(frame, at, relation)
        at += 3
    if kind == b"U":
        after, _ = _row(frame, at, relation)
    return Change("update" if kind == b"U" else "delete", relation.name, begin, before, after)


def _row(frame: bytes, at: int, relation: Relation) -> tuple[dict[str, Any], int]:
    row: dict[str, Any] = {}
    for name, read in relation.columns:
        kind = frame[at : at + 1]
        at += 1
        if kind == b"t":
            (length,) = _LENGTH.unpack_from(frame, at)
            at += 4
            row[name] = read(frame[at : at + length].decode())
            at += length
        elif kind == b"n":
            row[name] = None
    return row, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, metavar="ROWS")
    arguments = parser.parse_args()
    with PostgresServer.started() as server:
        if arguments.large is not None:
            Bench(server.create_database(), arguments.large, in_a_transaction=arguments.large).measure_memory()
            return
        bench = Bench(server.create_database(), arguments.records)
        print(f"{arguments.records} records, ratios of {arguments.rounds} rounds: median (lowest to highest)")
        compare("changes", bench.loop, bench.ours, records=arguments.records, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
