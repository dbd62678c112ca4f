"""What the transaction vectors share: a writer of a journal, connectors on virtual time, a pipeline while it runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import journal
from conduit_connectors.journal.position import JournalPosition

from conduit_py import Destination, Pipeline, Record, Source, sdk
from conduit_py.journal.file_log import FileLog
from conduit_py.journal.frame import encode_body
from conduit_py.journal.message_id import MessageUuid
from conduit_py.journal.transactions import Publisher
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.store import Store

LOOK = 0.6
"""Longer than the longest pause between two looks of an idle source: then it has seen all there is."""


class Upstream:
    """Somebody who writes transactions of numbers into a journal, message by message."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._publisher = Publisher()

    def provisional(self, *numbers: int) -> tuple[MessageUuid, list[bytes]]:
        """Append the numbers as CONTINUEs of the open transaction, in one frame."""
        id = self._publisher.in_transaction("the journal", len(numbers))
        bodies = [encode_body(Record.of({"n": number})) for number in numbers]
        self._append(id, bodies)
        return id, bodies

    def again(self, written: tuple[MessageUuid, list[bytes]]) -> None:
        """Append once more what was appended before, as after an answer that was lost."""
        self._append(*written)

    def acknowledge(self) -> int:
        """Commit the open transaction; the offset behind its ACK."""
        (intent,) = self._publisher.ack_intents()
        return self._append(intent.id, [b""])

    def _append(self, id: MessageUuid, bodies: list[bytes]) -> int:
        with FileLog(self.path) as log:
            return log.append(bodies, id=id).end


class VirtualSource(journal.Source):
    """Reads in the event loop, so that no virtual time passes meanwhile."""

    blocking = False  # type: ignore[assignment]


class VirtualDestination(journal.Destination):
    """Writes in the event loop, so that no virtual time passes meanwhile."""

    blocking = False  # type: ignore[assignment]


def pipeline(
    source: sdk.SourceConnector[Any], *destinations: sdk.DestinationConnector[Any], batch_size: int = 1000, **more: Any
) -> Pipeline:
    return Pipeline(
        "p",
        sources=[Source("s", source, batch_size=batch_size)],
        destinations=[Destination(f"d{index}", each) for index, each in enumerate(destinations)],
        delivery="exactly_once",
        **more,
    )


@asynccontextmanager
async def running(declared: Pipeline, store: Store) -> AsyncIterator[Supervisor]:
    """The pipeline while it runs, from the moment it has looked at its source. It is stopped in the end."""
    supervisor = Supervisor(declared, store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(LOOK)
        yield supervisor
        supervisor.stop()


async def read_committed(store: Store) -> int:
    """How many transactions the pipeline has committed, in all its runs."""
    claimed = await store.claim_state("p")
    assert claimed is not None
    return claimed.committed


async def position(store: Store) -> JournalPosition:
    """Where the source goes on, by what is durable of it."""
    return JournalPosition.decode((await store.positions("p"))["s"])


async def offset(store: Store) -> int:
    """Up to where the source has come, by what is durable of it."""
    return (await position(store)).checkpoint.offset
