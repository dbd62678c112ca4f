"""The slot of a PostgreSQL source moves only from acks, and whatever the server has lost is refused, never skipped."""

import os
import signal
import subprocess
from typing import Any

import pytest
import trio
from conduit_connectors import postgres as connector
from conduit_connectors.postgres.position import SourcePosition
from conduit_connectors.postgres.replication import format_lsn
from postgres_changes import DROP_SLOT, PATIENCE_SECONDS, ChangeReader, open_reader, run_sql, slot_of

from conduit_py.sdk import FatalError, TransientError

SLOT = "pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def source(postgres: str) -> connector.Source:
    return source_of(postgres)


def source_of(postgres: str) -> connector.Source:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    return connector.Source(
        url=postgres, slot=slot_of(postgres), publication="kept", tables=["t"], snapshot="never", heartbeat_seconds=0.1
    )


def confirmed(dsn: str) -> str:
    [[lsn]] = run_sql(
        dsn, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()"
    )
    return str(lsn)


async def refusal(source: connector.Source, position: bytes | None) -> FatalError:
    with pytest.raises(FatalError) as refused:
        async with open_reader(source, position):
            pass
    return refused.value


async def test_the_slot_moves_only_when_a_position_is_acked(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        start = confirmed(postgres)
        run_sql(postgres, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        first, _ = await reader.take(2)
        run_sql(postgres, "SELECT pg_logical_emit_message(true, 'other', 'x')")
        await reader.progress_after()
    untouched = confirmed(postgres)
    async with open_reader(source, first.position) as reader:
        await reader.source.ack([first.position])

    assert untouched == start
    assert confirmed(postgres) == SourcePosition.decode(first.position).lsn


async def test_the_slot_of_an_idle_table_moves_and_a_restart_accepts_it(
    postgres: str, source: connector.Source
) -> None:
    run_sql(postgres, "CREATE TABLE busy (id int PRIMARY KEY)")
    async with open_reader(source) as reader:
        start = confirmed(postgres)
        run_sql(postgres, "INSERT INTO busy SELECT generate_series(1, 1000)")
        [[here]] = run_sql(postgres, "SELECT pg_current_wal_lsn()::text")
        # Not at once past the inserts: the server decodes them in its own time.
        position = await reader.progress_after()
        while SourcePosition.decode(position).log_place < SourcePosition("", here).log_place:
            position = await reader.progress_after(position)
        await reader.source.ack([position])
    moved = confirmed(postgres)
    async with open_reader(source, position) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1)")
        [record] = await reader.take(1)

    assert start != moved == SourcePosition.decode(position).lsn
    assert record.key == {"id": 1}


async def test_progress_is_never_inside_of_a_transaction(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        run_sql(postgres, "INSERT INTO t SELECT generate_series(1, 3)")
        # Before the transaction there may be progress: other tests write to the log of the server too.
        records = await reader.take(1)
        # Longer than a heartbeat between the reads, so that one is due at each of them.
        while len(records) < 3:
            await trio.sleep(0.15)
            reading = await reader.source.read(1)
            assert reading.position is None
            records += reading.records

    assert [record.key for record in records] == [{"id": 1}, {"id": 2}, {"id": 3}]


async def test_a_slot_that_was_left_by_a_killed_start_is_used(postgres: str, source: connector.Source) -> None:
    async with open_reader(source):
        pass
    run_sql(postgres, "INSERT INTO t VALUES (1)")

    async with open_reader(source) as reader:
        [record] = await reader.take(1)

    assert record.key == {"id": 1}


async def test_a_missing_slot_is_refused(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        position = reader.source.start_position()
    run_sql(postgres, DROP_SLOT)

    error = await refusal(source, position)

    assert f"there is no replication slot {slot_of(postgres)} any more" in error.message
    assert "reset the position" in str(error.suggestion)


async def test_a_slot_that_was_created_again_is_refused(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        position = reader.source.start_position()
    run_sql(
        postgres,
        DROP_SLOT,
        "INSERT INTO t VALUES (1)",
        f"SELECT pg_create_logical_replication_slot('{slot_of(postgres)}', 'pgoutput')",
    )

    error = await refusal(source, position)

    assert "was created again, or another reader moved it" in error.message


async def test_an_invalidated_slot_is_refused(own_postgres: Any) -> None:
    postgres = own_postgres.create_database()
    source = source_of(postgres)
    async with open_reader(source) as reader:
        position = reader.source.start_position()
    run_sql(postgres, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    while run_sql(postgres, "SELECT wal_status FROM pg_replication_slots") != [("lost",)]:
        run_sql(postgres, "SELECT pg_switch_wal()", "CREATE TABLE x ()", "DROP TABLE x", "CHECKPOINT")

    error = await refusal(source, position)
    from_the_start = await refusal(source, None)

    assert "is invalidated: the server deleted changes" in error.message
    assert "invalidated" in from_the_start.message


async def test_a_position_of_another_server_or_of_its_future_is_refused(
    postgres: str, source: connector.Source
) -> None:
    async with open_reader(source) as reader:
        start = SourcePosition.decode(reader.source.start_position() or b"")
    elsewhere = SourcePosition.at("1", start.log_place, ())
    later = SourcePosition.at(start.system, start.log_place + 2**40, ())

    assert "this is the server" in (await refusal(source, elsewhere.encode())).message
    assert "restored from an older copy" in str((await refusal(source, later.encode())).suggestion)


@pytest.mark.parametrize(
    "wrong", [b"", b"x", b"{}", b'{"system":"1","lsn":"x","version":1}', b'{"system":"1","lsn":"0/0"}']
)
async def test_what_is_no_position_is_refused(source: connector.Source, wrong: bytes) -> None:
    with pytest.raises(FatalError, match="is not a position of this source"):
        source.check_position(wrong)


async def test_a_dropped_publication_is_refused_while_running_and_at_the_start(
    postgres: str, source: connector.Source
) -> None:
    async with open_reader(source) as reader:
        position = reader.source.start_position()
        run_sql(postgres, "DROP PUBLICATION kept", "INSERT INTO t VALUES (1)")
        with pytest.raises(FatalError) as running:
            await reader.take(1)

    error = await refusal(source, position)

    assert "the publication was dropped" in str(running.value.suggestion)
    assert "there is no publication kept any more" in error.message


async def test_a_publication_created_again_does_not_skip_what_it_missed(
    postgres: str, source: connector.Source
) -> None:
    async with open_reader(source) as reader:
        position = reader.source.start_position()
    run_sql(postgres, "DROP PUBLICATION kept", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION kept FOR TABLE t")

    with pytest.raises(FatalError) as refused:
        async with open_reader(source, position) as reader:
            await reader.take(1)

    assert "the publication was dropped" in str(refused.value.suggestion)


async def test_tables_and_publications_that_are_not_there_are_refused_with_what_to_do(postgres: str) -> None:
    run_sql(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u ()", "CREATE PUBLICATION p FOR TABLE t")
    url = postgres

    no_table = await refusal(connector.Source(url=url, slot=slot_of(postgres), tables=["gone"]), None)
    no_publication = await refusal(connector.Source(url=url, slot=slot_of(postgres)), None)
    not_in_it = await refusal(
        connector.Source(url=url, slot=slot_of(postgres), publication="p", tables=["t", "u"]), None
    )

    assert 'relation "public.gone" does not exist' in no_table.message
    assert "correct `tables`" in str(no_table.suggestion)
    assert "name the tables" in str(no_publication.suggestion)
    assert 'ALTER PUBLICATION "p" ADD TABLE "public"."u"' in str(not_in_it.suggestion)
    assert run_sql(postgres, f"SELECT 1 FROM {SLOT}") == []


async def test_a_slot_of_another_kind_is_refused(postgres: str, source: connector.Source) -> None:
    run_sql(postgres, f"SELECT pg_create_logical_replication_slot('{slot_of(postgres)}', 'test_decoding')")

    error = await refusal(source, None)

    assert "of the plugin test_decoding" in error.message


async def test_a_removed_source_leaves_no_slot(postgres: str, source: connector.Source) -> None:
    async with open_reader(source):
        pass

    await source.fresh().on_deleted()
    await source.fresh().on_deleted()

    assert run_sql(postgres, f"SELECT 1 FROM {SLOT}") == []


async def test_a_lost_connection_is_transient_and_nothing_is_missing(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1)")
        [first] = await reader.take(1)
        run_sql(
            postgres,
            f"SELECT pg_terminate_backend(active_pid) FROM {SLOT}",
        )
        with pytest.raises(TransientError, match="connection to PostgreSQL is lost"):
            await reader.take(1)
    run_sql(postgres, "INSERT INTO t VALUES (2)")
    async with open_reader(source, first.position) as reader:
        [second] = await reader.take(1)

    assert second.key == {"id": 2}


async def test_the_lag_is_the_log_that_was_not_read(postgres: str, source: connector.Source) -> None:
    async with open_reader(source) as reader:
        run_sql(postgres, "INSERT INTO t SELECT generate_series(1, 1000)")
        behind = await reader.source.lag()
        await reader.take(1000)
        with trio.fail_after(PATIENCE_SECONDS):
            while (level := await reader.source.lag()) is None or level.bytes:
                await reader.progress_after()

    assert behind is not None
    assert behind.bytes is not None
    assert behind.bytes > 1000 * 20
    # The server keeps at least what was not read, and from the beginning of the oldest open transaction on.
    assert behind.retained_bytes is not None
    assert behind.retained_bytes >= behind.bytes


async def test_a_restart_of_the_server_is_survived(own_postgres: Any) -> None:
    postgres = own_postgres.create_database()
    source = source_of(postgres)
    async with open_reader(source) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1)")
        [first] = await reader.take(1)
        own_postgres.stop()
        with pytest.raises(TransientError):
            await reader.take(1)
    with pytest.raises(TransientError, match="cannot connect"):
        async with open_reader(source, first.position):
            pass
    own_postgres.start()
    run_sql(postgres, "INSERT INTO t VALUES (2)")
    async with open_reader(source, first.position) as reader:
        [second] = await reader.take(1)

    assert second.key == {"id": 2}
    assert format_lsn(SourcePosition.decode(second.position).log_place) == SourcePosition.decode(second.position).lsn


async def test_an_orderly_stop_of_the_server_does_not_wait_for_a_heartbeat(own_postgres: Any) -> None:
    """The server waits until its readers have confirmed everything, and asks them to."""
    source = source_of(own_postgres.create_database())
    source = source.with_options(source.options.model_copy(update={"heartbeat_seconds": 1e6}))

    async with open_reader(source) as reader, trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, own_postgres.stop, signal.SIGINT)
        with pytest.raises(TransientError):
            await ack_progress(reader)


async def ack_progress(reader: ChangeReader) -> None:
    position = None
    while True:
        position = await reader.progress_after(position)
        await reader.source.ack([position])


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hun%ter2@127.0.0.1:1/db",
        "postgresql://u:hun@ter2@127.0.0.1:1/db",
        "postgresql://u:hun/ter2@127.0.0.1:1/db",
        "postgresql://u:hunter2@[::1]x/db",
        "mysql://u:hunter2@127.0.0.1:1/db",
    ],
)
async def test_an_address_that_cannot_be_read_is_reported_without_a_part_of_its_password(url: str) -> None:
    of_source = await refusal(connector.Source(url=url, slot="s", tables=["t"]), None)
    with pytest.raises(FatalError) as of_destination:
        connector.Destination(url=url, table="t").open()

    for error in (of_source, of_destination.value):
        assert error.message == "`url` is no address of a database"
        assert "%40 for @" in str(error.suggestion)


async def test_a_user_without_the_right_to_replicate_is_refused(postgres: str, source: connector.Source) -> None:
    role = slot_of(postgres)
    run_sql(postgres, f"CREATE ROLE {role} LOGIN")
    user = connector.Source(url=postgres.replace("tester@", f"{role}@"), slot=role, tables=["t"])

    error = await refusal(user, None)

    assert "refuses the user" in error.message
    run_sql(postgres, f"DROP ROLE {role}")


async def test_a_rotated_password_ends_no_connection_and_loses_no_change(postgres_server: Any, postgres: str) -> None:
    role = slot_of(postgres)
    postgres_server.create_user(role, "first")
    run_sql(postgres, f"ALTER ROLE {role} REPLICATION SUPERUSER", "CREATE TABLE t (id int PRIMARY KEY)")
    old, new = (
        connector.Source(url=postgres.replace("tester@", f"{role}:{password}@"), slot=role, tables=["t"])
        for password in ("first", "second")
    )

    async with open_reader(old) as reader:
        run_sql(postgres, "INSERT INTO t VALUES (1)")
        [first] = await reader.take(1)
        run_sql(postgres, f"ALTER ROLE {role} PASSWORD 'second'", "INSERT INTO t VALUES (2)")
        [second] = await reader.take(1)
    error = await refusal(old, first.position)
    async with open_reader(new, first.position) as reader:
        again = await reader.take(1)
    run_sql(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert "refuses the user" in error.message
    assert (second.key, [record.key for record in again]) == ({"id": 2}, [{"id": 2}])


async def test_an_owner_with_the_right_to_replicate_needs_no_more(postgres: str) -> None:
    role = slot_of(postgres)
    database = postgres.rpartition("/")[2]
    run_sql(postgres, f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT CREATE ON DATABASE {database} TO {role}")
    run_sql(
        postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", f"ALTER TABLE t OWNER TO {role}"
    )
    source = connector.Source(url=postgres.replace("tester@", f"{role}@"), slot=role, tables=["t"])

    async with open_reader(source) as reader:
        records = await reader.take(1)
        run_sql(postgres, "INSERT INTO t VALUES (2)")
        records += await reader.take(1)
    run_sql(postgres, f"REASSIGN OWNED BY {role} TO tester", f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    assert [record.key for record in records] == [{"id": 1}, {"id": 2}]


@pytest.fixture
def encrypted(own_postgres: Any) -> str:
    """The address of a database of a server with TLS."""
    postgres = own_postgres.create_database()
    data = own_postgres.folder / "data"
    certificate = ["-subj", "/CN=localhost", "-keyout", str(data / "server.key"), "-out", str(data / "server.crt")]
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-newkey", "rsa:2048", *certificate], check=True)
    for name in ("server.key", "server.crt"):
        os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
        (data / name).chmod(0o600)
    run_sql(postgres, "ALTER SYSTEM SET ssl = on")
    own_postgres.stop()
    own_postgres.start()
    return f"{postgres}?sslmode=require"


async def test_an_encrypted_stream_is_read_without_a_stall(encrypted: str) -> None:
    """The heartbeat is far away: bytes that wait in the TLS layer would wait for ever."""
    run_sql(encrypted, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = connector.Source(url=encrypted, slot="tls", tables=["t"], snapshot="never", heartbeat_seconds=1e6)

    async with open_reader(source) as reader:
        run_sql(encrypted, "INSERT INTO t SELECT g, repeat('x', g % 3000) FROM generate_series(1, 3000) g")
        records = await reader.take(3000)
        run_sql(encrypted, "INSERT INTO t VALUES (0)")
        records += await reader.take(1)

    assert [record.key for record in records] == [{"id": number} for number in (*range(1, 3001), 0)]
