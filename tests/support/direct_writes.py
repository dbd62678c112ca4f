"""Writes records through a destination of its own, as the runtime would, without a pipeline."""

from typing import Any

import trio

from conduit_py.record import Record
from conduit_py.sdk import DestinationConnector
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.testing.connector_driver import batch_of


def write_records(destination: DestinationConnector[Any], *records: Record) -> dict[int, str]:
    """Open a fresh copy of the destination, write the records as one batch, tear it down; return the refused ones."""

    async def write() -> dict[int, str]:
        calls = PluginCaller("node", destination.fresh())
        try:
            await calls("open")
            return dict(await calls("write", batch_of(list(records))) or {})
        finally:
            await calls("teardown")
            calls.close()

    assert destination.problems == []
    return trio.run(write)
