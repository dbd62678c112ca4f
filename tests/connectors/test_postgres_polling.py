"""The polling source of PostgreSQL: rows by a growing column, none skipped because its transaction commits late."""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import trio
from conduit_connectors import postgres_polling
from postgres_changes import PATIENCE_SECONDS, run_sql
from waiting import until

from conduit_py.sdk import EndOfSource, FatalError, Operation, Reading, Record, metadata
from conduit_py.testing import source_acceptance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module")
def shared_database(postgres_server: Any) -> Iterator[str]:
    """One database for all rules of the acceptance suite: to create one takes longer than a rule."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


def rows_with_equal_values(shared_database: str) -> Iterator[postgres_polling.Source]:
    run_sql(shared_database, "CREATE TABLE t (a text, b int, version bigint NOT NULL, PRIMARY KEY (b, a))")
    run_sql(shared_database, "INSERT INTO t SELECT 'k' || g % 3, g, g / 3 FROM generate_series(1, 8) g")
    yield postgres_polling.Source(url=shared_database, table="t", column="version", poll_seconds=0.01)
    run_sql(shared_database, "DROP TABLE t")


TestRowsWithEqualValues = source_acceptance(rows_with_equal_values, records=8)


@asynccontextmanager
async def open_source(
    source: postgres_polling.Source, position: bytes | None = None
) -> "AsyncIterator[postgres_polling.Source]":
    fresh = source.fresh()
    try:
        await fresh.open(position)
        yield fresh
    finally:
        await fresh.teardown()


async def take(source: postgres_polling.Source, count: int) -> list[Record]:
    records: list[Record] = []
    with trio.fail_after(PATIENCE_SECONDS):
        while len(records) < count:
            records += (await source.read(count - len(records))).records
    return records


def ids(records: list[Record]) -> list[int]:
    return [record.payload.after["id"] for record in records]  # type: ignore[call-overload,index]


class LateReading:
    """Reads in the background while a test has a transaction open."""

    def __init__(self, source: postgres_polling.Source) -> None:
        self._source = source
        self.records: list[Record] = []

    @asynccontextmanager
    async def expect(self, count: int) -> "AsyncIterator[None]":
        """Begin to read, and give that time. After the block, wait until there are so many records."""

        async def read() -> None:
            while len(self.records) < count:
                self.records += (await self._source.read(100)).records

        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                # Long enough for several looks. If the machine is slower than that, the test shows less.
                await trio.sleep(0.8)
                assert self.records == [], "it was read before a transaction that was open has ended"
                yield


@pytest.mark.parametrize("column", ["id", "at"])
async def test_a_row_that_commits_after_one_with_a_larger_value_is_not_skipped(postgres: str, column: str) -> None:
    """The late session takes its number and its time first, and has no transaction id when the other one commits."""
    run_sql(postgres, "CREATE TABLE t (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
    # The first number of a sequence gives an id to its transaction, the next ones do not.
    run_sql(postgres, "SELECT nextval('t_id_seq')")
    source = postgres_polling.Source(url=postgres, table="t", column=column, poll_seconds=0.01)
    async with open_source(source) as reader:
        reading = LateReading(reader)
        with psycopg.connect(postgres) as late, psycopg.connect(postgres, autocommit=True) as other:
            [number] = late.execute("SELECT nextval('t_id_seq')").fetchone() or [0]
            other.execute("INSERT INTO t DEFAULT VALUES")
            ids_tell_nothing = "SELECT pg_snapshot_xmin(pg_current_snapshot()) > max(xmin::text::xid8) FROM t"
            # Autovacuum may have an id too, for a moment.
            await until(lambda: other.execute(ids_tell_nothing).fetchall() == [(True,)])
            async with reading.expect(2):
                late.execute("INSERT INTO t (id) VALUES (%s)", [number])
                late.commit()
            other.execute("INSERT INTO t DEFAULT VALUES")
        third = await take(reader, 1)

    assert ids(reading.records + third) == [number, number + 1, number + 2]


async def test_a_transaction_that_is_prepared_or_rolled_back_is_awaited_too(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)")
    async with open_source(postgres_polling.Source(url=postgres, table="t", column="id", poll_seconds=0.01)) as reader:
        prepared, rolled_back = LateReading(reader), LateReading(reader)
        with psycopg.connect(postgres) as late:
            late.execute("INSERT INTO t VALUES (1)")
            late.execute("PREPARE TRANSACTION 'late'")
        run_sql(postgres, "INSERT INTO t VALUES (2)")
        async with prepared.expect(2):
            run_sql(postgres, "COMMIT PREPARED 'late'")
        with psycopg.connect(postgres) as late:
            late.execute("INSERT INTO t VALUES (3)")
            run_sql(postgres, "INSERT INTO t VALUES (4)")
            async with rolled_back.expect(1):
                late.rollback()

    assert (ids(prepared.records), ids(rolled_back.records)) == ([1, 2], [4])


async def test_open_transactions_of_other_databases_are_not_awaited(postgres: str, shared_database: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with psycopg.connect(shared_database) as elsewhere:
        elsewhere.execute("SELECT 1")
        async with open_source(postgres_polling.Source(url=postgres, table="t", column="id")) as reader:
            assert ids(await take(reader, 1)) == [1]


async def test_rows_have_exact_values_their_key_and_a_schema_and_come_again_when_they_change(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v numeric(20,3), at timestamptz NOT NULL, r int4range)")
    run_sql(postgres, "INSERT INTO t VALUES (1, 1.100, '2026-01-01', '[1,3)'), (2, NULL, '2026-01-01', NULL)")
    readings: list[Reading] = []
    async with open_source(postgres_polling.Source(url=postgres, table="t", column="at", poll_seconds=0.01)) as reader:
        readings.append(await reader.read(100))
        run_sql(postgres, "UPDATE t SET at = '2026-01-02', v = 7 WHERE id = 1")
        readings.append(await reader.read(100))
        run_sql(postgres, "ALTER TABLE t DROP r", "UPDATE t SET at = '2026-01-03'")
        readings.append(await reader.read(100))

    first, second, third = readings
    time = datetime(2026, 1, 1, tzinfo=UTC)
    assert [(each.operation, each.key, each.payload.after) for each in first.records] == [
        (Operation.SNAPSHOT, {"id": 1}, {"id": 1, "v": Decimal("1.100"), "at": time, "r": "[1,3)"}),
        (Operation.SNAPSHOT, {"id": 2}, {"id": 2, "v": None, "at": time, "r": None}),
    ]
    assert first.records[0].metadata["postgres.text"] == '{"r":"int4range"}'
    assert (ids(list(second.records)), ids(list(third.records))) == ([1], [1, 2])
    assert [[field.native for field in schema.fields] for each in readings for schema in each.schemas] == [
        ["integer", "numeric(20,3)", "timestamp with time zone", "int4range"],
        ["integer", "numeric(20,3)", "timestamp with time zone"],
    ]
    assert second.records[0].metadata[metadata.PAYLOAD_SCHEMA_VERSION] == first.schemas[0].version


REFUSED = [
    ("missing", "id", "there is no table public.missing"),
    ("t", "missing", "has no column missing"),
    ("t", "name", "is no number and no time"),
    ("t", "maybe", "may be NULL"),
    ("t", "rounded", "is rounded"),
    ("t", "cached", "has a cache of 20"),
    ("keyless", "id", "has no key"),
]


async def test_what_cannot_be_read_without_a_gap_is_refused(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE keyless (id int NOT NULL)")
    run_sql(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL, maybe int, rounded timestamptz(0) NOT NULL,"
        " cached int GENERATED ALWAYS AS IDENTITY (CACHE 20), at timestamptz NOT NULL)",
    )
    for table, column, message in REFUSED:
        with pytest.raises(FatalError, match=message) as refused:
            async with open_source(postgres_polling.Source(url=postgres, table=table, column=column)):
                pass
        assert refused.value.suggestion
    run_sql(postgres, "INSERT INTO t VALUES (1, 'a', 1, now(), DEFAULT, 'infinity')")
    with pytest.raises(FatalError, match="has infinity in at"):
        async with open_source(postgres_polling.Source(url=postgres, table="t", column="at")) as reader:
            await reader.read(1)


def test_a_position_of_another_source_is_refused() -> None:
    source = postgres_polling.Source(url="postgresql://x", table="t", column="id")
    for position in (b"sqlite:1:4", b'{"version":2,"values":["1"]}', b'{"version":1,"values":[]}'):
        with pytest.raises(FatalError, match="is not a position of this source"):
            source.check_position(position)

    assert source.locate_record(b'{"version":1,"values":["7","a"]}') == "public.t with id 7 and key a"


async def test_without_tail_it_ends_after_the_rows_that_were_there_and_goes_on_after_them(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE jobs (id bigserial PRIMARY KEY)")
    run_sql(postgres, "INSERT INTO jobs SELECT FROM generate_series(1, 3)")
    source = postgres_polling.Source(url=postgres, table="jobs", column="id", tail=False)
    async with open_source(source) as reader:
        first = await take(reader, 3)
        run_sql(postgres, "INSERT INTO jobs DEFAULT VALUES")
        with pytest.raises(EndOfSource):
            await reader.read(10)
    async with open_source(source, first[-1].position) as reader:
        second = await take(reader, 1)
        with pytest.raises(EndOfSource):
            await reader.read(10)
    async with open_source(source, second[-1].position) as reader:
        with pytest.raises(EndOfSource):
            await reader.read(10)

    assert (ids(first), ids(second)) == ([1, 2, 3], [4])
