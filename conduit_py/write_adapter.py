"""WriteAdapter: replaces the direct call of `write` if part of the work was done before the batch arrived."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from conduit_py.batch import Batch


class WriteAdapter(Protocol):
    """Decides for each batch if `when` must still be evaluated, and which method writes it."""

    def asks_when(self, batch: Batch) -> bool:
        """Return True if `when` must still be evaluated for the records of this batch."""

    async def write(self, call: Callable[..., Awaitable[Any]], batch: Batch) -> Any:
        """Write the batch with `call(name, *arguments)`, which calls the connector. Returns what `write` would.

        If it raises RecordRefused, every record of the batch is refused.
        """
