"""A store that broke goes on in a renewed file, and pipelines with it, by their back-off alone."""

from pathlib import Path

import pytest
import trio

from conduit_py import DeadLetter, Destination, Pipeline, Record, Recovery, Source
from conduit_py.batch import MessageId
from conduit_py.dead_letter import Failure
from conduit_py.errors import StateFailed
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.dead_letter_store import SqlLetters
from conduit_py.store.sqlite.database import StateDatabase
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource


def refuse_writes(database: StateDatabase) -> None:
    """Have the connection refuse every write from now on, as after an error of the disk; a new one does not."""
    database.connection.execute("PRAGMA query_only = ON")


async def log_has(log: EventLog, acked: int) -> None:
    while len(log.acked["source"]) < acked:
        await trio.lowlevel.checkpoint()


async def test_what_was_durable_is_there_and_what_failed_is_not(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    async with SqliteStore(database) as store:
        await store.save_positions("orders", {"web": b"1", "shop": b"1"})
        refuse_writes(database)
        with pytest.raises(StateFailed, match="could not be written"):
            await store.save_positions("orders", {"web": b"2"})
        read = await store.positions("orders")
        await store.save_positions("orders", {"shop": b"3"})

        assert read == {"web": b"1", "shop": b"1"}
        assert await store.positions("orders") == {"web": b"1", "shop": b"3"}
    async with await SqliteStore.open(tmp_path) as reopened:
        assert await reopened.positions("orders") == {"web": b"1", "shop": b"3"}


async def test_a_copy_that_cannot_be_made_is_not_tried_at_every_write(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    async with SqliteStore(database) as store:
        await store.save_positions("orders", {"web": b"1"})
        refuse_writes(database)
        # What the copy would be called first is taken by something that cannot be removed.
        (tmp_path / "state.db.new" / "in the way").mkdir(parents=True)
        failures = []
        for _ in range(3):
            with pytest.raises(StateFailed) as failed:
                await store.save_positions("orders", {"web": b"2"})
            failures.append(failed.value.message.partition(":")[0])
        (tmp_path / "state.db.new" / "in the way").rmdir()
        (tmp_path / "state.db.new").rmdir()
        with pytest.raises(StateFailed, match="takes no more writes"):
            await store.save_positions("orders", {"web": b"2"})

        assert failures == [
            f"{tmp_path / 'state.db'} could not be written",
            *[f"{tmp_path / 'state.db'} takes no more writes, because an earlier one failed"] * 2,
        ]
        assert await store.positions("orders") == {"web": b"1"}


async def test_a_pipeline_recovers_by_itself_and_loses_nothing(tmp_path: Path) -> None:
    database = StateDatabase.open(tmp_path)
    log = EventLog()
    pipeline = Pipeline(
        "orders",
        sources=[Source("in", ScriptedSource(records=5000, log=log, prunes=True), window=64, batch_size=16)],
        destinations=[Destination("out", ScriptedDestination(log=log))],
    )
    async with SqliteStore(database) as store:
        supervisor = Supervisor(pipeline, store, recovery=Recovery(delay_seconds=0.01, delay_max_seconds=0.01))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await log_has(log, 500)
            refuse_writes(database)

    assert supervisor.state.status is Status.COMPLETED
    assert supervisor.progress().recoveries >= 1
    log.check(after_run=True)
    assert len(set(log.acked["source"])) == 5000


async def test_dead_letters_go_on_in_a_renewed_file_too(tmp_path: Path) -> None:
    def letter(number: int) -> DeadLetter:
        failure = Failure("lake", "no such customer")
        return DeadLetter("p", MessageId("web", number), b"%d" % number, Record.of({"n": number}), [failure])

    def refuse(table: SqlLetters) -> None:
        table.sql.run("PRAGMA query_only = ON")

    async with await SqliteStore.open(tmp_path) as store:
        await store.letters.store([letter(1)])
        await store.letters._look(refuse)
        with pytest.raises(StateFailed, match="could not be written"):
            await store.letters.store([letter(2)])
        await store.letters.store([letter(3)])
        page = await store.letters.page(LetterFilter(), limit=10)
        positions = [(await store.letters.letter(each.id)).position for each in page.letters]

    assert sorted(positions) == [b"1", b"3"]
