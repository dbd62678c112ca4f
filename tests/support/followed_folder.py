"""A folder of pipeline files, and a fleet that follows it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from waiting import until

from conduit_py.config.definitions import Definitions
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import SLOW_SECONDS, Reload, Reloader
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore

FILE = """
from conduit_connectors import generator, log
from conduit_py import Destination, Pipeline, Processor, Record, Source

def mark(record: Record) -> Record:
    record.payload["by"] = "{mark}"
    return record

{id} = Pipeline(
    "{id}",
    description="{description}",
    sources=[Source("source", generator.Source(rate={rate}, fields={{"id": "index"}}))],
    processors=[mark],
    destinations=[Destination("to", log.Destination(level="debug"))],
)
"""


def text(id: str = "p", *, mark: str = "old", rate: int = 50, description: str = "") -> str:
    return FILE.format(id=id, mark=mark, rate=rate, description=description)


class Site:
    """A folder of pipelines, and a fleet that follows it."""

    def __init__(self, folder: Path, fleet: Fleet, reloader: Reloader) -> None:
        self.folder = folder
        self.fleet = fleet
        self.reloader = reloader

    def write(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content)

    async def reload(self, **settings: float) -> Reload:
        done = await self.reloader.reload(**settings)  # type: ignore[arg-type]
        await until(lambda: not self.reloader.busy)
        return done

    def run_of(self, id: str) -> object:
        """What stays the same for as long as the pipeline is not started again; None before it runs."""
        member = self.fleet[id]
        return member.supervisor if member.state.status is Status.RUNNING else None


@asynccontextmanager
async def following(folder: Path, *, slow_seconds: float = SLOW_SECONDS, **files: str) -> AsyncIterator[Site]:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        fleet = Fleet(store, nursery)
        definitions = Definitions(folder)
        reloader = Reloader(fleet, store, definitions, nursery, slow_seconds=slow_seconds)
        await reloader.begin(definitions.read())
        await fleet.boot()
        yield Site(folder, fleet, reloader)
        await fleet.shutdown(5)
        nursery.cancel_scope.cancel()
