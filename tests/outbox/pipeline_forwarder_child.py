"""A process that is killed: numbers into a file, each of them published as mail, which its pipeline forwards.

pipeline_forwarder_child.py FOLDER    runs to the end; each mail is a line of `mail.txt`: its delivery key and number
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import trio
from conduit_connectors import file, memory
from pydantic import Field

from conduit_py import Batch, Destination, Pipeline, Record, Source, State, TransactionLimits, processor, sdk
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.status import Status
from conduit_py.store.sqlite.store import SqliteStore


class LinesOptions(sdk.Options):
    """Where the lines go."""

    path: Annotated[Path, Field(description="the file")]


class Lines(sdk.DestinationConnector[LinesOptions]):
    """One write call per line: a line is whole or absent, wherever the process is killed."""

    def open(self) -> None:
        self._descriptor = os.open(self.options.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, batch: Batch) -> None:
        for index, record in enumerate(batch):
            os.write(self._descriptor, b"%s %d\n" % (batch.delivery_key(index).hex().encode(), record.payload["n"]))

    def teardown(self) -> None:
        os.close(self._descriptor)


@processor(state=True)
def announced(record: Record, state: State) -> Record:
    state.publish("mail", Record.of({"n": record.payload["n"]}))
    return record


async def main(folder: Path) -> int:
    pipeline = Pipeline(
        "p",
        sources=[Source("s", memory.Source(records=[{"n": n} for n in range(200)]), batch_size=20)],
        processors=[announced],
        destinations=[Destination("d", file.Destination(path=folder / "rows.txt", format="json"))],
        delivery="exactly_once",
        transaction=TransactionLimits(max_records=40),
        outbox={"mail": Lines(path=folder / "mail.txt")},
    )
    async with await SqliteStore.open(folder / "state") as store:
        state = await Supervisor(pipeline, store).run()
    return 0 if state.status is Status.COMPLETED else 3


if __name__ == "__main__":
    sys.exit(trio.run(main, Path(sys.argv[1])))
