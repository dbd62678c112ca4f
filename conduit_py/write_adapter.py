"""WriteAdapter: stands between the writer of a destination and its connector, where part of the work is done before."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from conduit_py.batch import Batch


class WriteAdapter(Protocol):
    """Decides for each batch what is left to do: ask the destination's `when`, and which method writes it."""

    def asks_when(self, batch: Batch) -> bool:
        """Whether `when` is still to be asked about the records of this batch."""

    async def write(self, call: Callable[..., Awaitable[Any]], batch: Batch) -> Any:
        """Write the batch with methods of the connector, by `call(name, *arguments)`; the answer is that of `write`.

        A RecordRefused that it raises refuses every record of the batch.
        """
