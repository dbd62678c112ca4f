"""Outlet: an open destination that is given rows, of which it must take every one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from conduit_py import sdk
from conduit_py.batch import Batch, Span
from conduit_py.errors import FatalError, RecordRefused
from conduit_py.record import Record
from conduit_py.sdk.destination import AckMode, refusal_text
from conduit_py.spark.format.columns import refused_row
from conduit_py.stream.plugin_calls import PluginCaller, answers_about, check_refusals, plugin_errors

NODE = "destination"


class RowRefused(FatalError):
    """A row cannot be written. Spark has no place for such rows, so the job fails."""

    code = "row.refused"


class Outlet:
    """Numbers the rows of each partition, which are their identities for whoever looks at delivery keys."""

    def __init__(self, calls: PluginCaller, owner: str) -> None:
        self._calls = calls
        self._owner = owner
        self._rows: dict[int, int] = {}

    async def call(self, name: str, *args: Any) -> Any:
        with plugin_errors(NODE, name):
            return await self._calls(name, *args)

    async def write(self, partition: int, records: list[Record]) -> Batch:
        """Have the next rows of the partition written. Raises RowRefused for the first that is refused."""
        first = self._rows.get(partition, 0)
        positions = [b"%d:%d" % (partition, first + index) for index in range(len(records))]
        batch = Batch.whole(Span(self._owner, "spark", first, positions), records)
        self._rows[partition] = first + len(records)
        with plugin_errors(NODE, "write"):
            refused = check_refusals(NODE, await self._said(batch), len(batch))
        for index, reason in refused.items():
            raise RowRefused(refused_row(first + index, partition, RecordRefused(reason), records[index]))
        return batch

    async def _said(self, batch: Batch) -> Any:
        try:
            return await self._calls("write", batch)
        except RecordRefused as error:
            return dict.fromkeys(range(len(batch)), refusal_text(error))

    async def deliver(self, partition: int, records: list[Record]) -> None:
        """Write these rows and wait until they are handled, by the destination's own rules."""
        batch = await self.write(partition, records)
        plugin = self._calls.plugin
        assert isinstance(plugin, sdk.Destination)
        if plugin.acks is not AckMode.WRITE:
            await self.call("flush")
        if plugin.acks is not AckMode.LATER:
            return
        for index, reason in (await answers_about(NODE, self._calls, batch, {})).items():
            number = batch.sequences[index]
            raise RowRefused(refused_row(number, partition, RecordRefused(reason), records[index]))


@asynccontextmanager
async def opened(destination: sdk.Destination[Any], owner: str) -> AsyncIterator[Outlet]:
    calls = PluginCaller(NODE, destination.fresh())
    outlet = Outlet(calls, owner)
    try:
        await outlet.call("open")
        yield outlet
    finally:
        try:
            await calls("teardown")
        finally:
            calls.close()
