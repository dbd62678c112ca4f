"""The destination that sends records to a queue in a SQLite file."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from conduit_connectors.sqlite_queue.queue import SqliteQueue
from conduit_py import sdk
from conduit_py.sdk import Batch, Data, Options, RecordRefused, encode_json


class DestinationOptions(Options):
    """Where the queue is."""

    path: Path = Field(description="the SQLite file")


class Destination(sdk.Destination[DestinationOptions]):
    """Each record is a message: its bytes as they are, structured data as JSON. At least once."""

    def open(self) -> None:
        self._queue = SqliteQueue(self.options.path)
        self._queue.open()

    def write(self, batch: Batch) -> Mapping[int, str]:
        refused: dict[int, str] = {}
        bodies: list[bytes] = []
        for index, record in enumerate(batch):
            try:
                bodies.append(_body(record.payload.after))
            except RecordRefused as error:
                refused[index] = error.message
        self._queue.send(bodies)
        return refused

    def teardown(self) -> None:
        self._queue.close()


def _body(data: Data) -> bytes:
    if data is None:
        raise RecordRefused("has no payload.after, so there is nothing to send")
    return data if isinstance(data, bytes) else encode_json(data)
