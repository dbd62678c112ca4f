"""Two servers on one PostgreSQL: one runs a pipeline, the other waits and takes over where it ended."""

import trio
from waiting import until

from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.postgres.store import PostgresStore
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

SOON = Recovery(delay_seconds=0.05, delay_max_seconds=0.05)


def made(log: EventLog, records: int, *, bounded: bool) -> Pipeline:
    return Pipeline(
        "orders",
        sources=[Source("web", ScriptedSource(name="web", records=records, log=log, bounded=bounded))],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
    )


async def test_a_second_server_waits_and_takes_over_where_the_first_one_ended(postgres: str) -> None:
    log, taken_over = EventLog(), EventLog()
    async with await PostgresStore.open(postgres) as one, await PostgresStore.open(postgres) as other:
        first = Supervisor(made(log, 3, bounded=False), one, recovery=SOON)
        second = Supervisor(made(taken_over, 5, bounded=True), other, recovery=SOON)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            await until(lambda: len(log.acked["web"]) == 3)
            nursery.start_soon(second.run)
            await until(lambda: second.state.status is Status.RECOVERING)
            error = second.state.error
            read_while_waiting = len(taken_over.read["web"])
            first.stop()

        assert error is not None
        assert error.code == "run.elsewhere"
        assert error.message.startswith("pipeline 'orders' is run by process ")
        assert read_while_waiting == 0
        assert first.state.status is Status.STOPPED
        assert second.state.status is Status.COMPLETED
        assert len(taken_over.stored["lake"]) == 2
