"""OfflineTransport: answers requests from a state directory that no server uses, as a server would."""

import logging
from pathlib import Path

import httpx2
import trio

from conduit_py.config.definitions import Definitions
from conduit_py.config.loaded import LoadedPipeline
from conduit_py.errors import ConduitError, EnvironmentUnfit
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.server.serve import ServerConfig, create_app
from conduit_py.server.service import Service
from conduit_py.store.store import Store, open_store

log = logging.getLogger("conduit_py")


class OfflineTransport(httpx2.BaseTransport):
    """The API over a state, without a server and without running anything.

    The state is open, and locked, for one request at a time. Pipelines come from `pipelines`, else from the files
    that the state has recorded for them. Positions and replays need them; letters can be read without.
    """

    def __init__(self, state: str, pipelines: Path | None = None) -> None:
        self._state = state
        self._pipelines = pipelines
        self._loaded: dict[Path, list[LoadedPipeline]] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        # Opening would create it, and a mistyped directory would look like one without any letters.
        if "://" not in self._state and not Path(self._state, "state.db").exists():
            raise EnvironmentUnfit(
                f"there is no state in {self._state}", suggestion="give the directory that `run` or `serve` has used"
            )
        if self._pipelines is not None and not self._pipelines.exists():
            raise EnvironmentUnfit(f"there is no {self._pipelines}", suggestion="name the file of the pipelines")
        return trio.run(self._answer, request)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        async with await open_store(self._state) as store, trio.open_nursery() as nursery:
            fleet = Fleet(store, nursery, engine=Supervisor)
            for each in await self._definitions(store):
                await _add(fleet, each)
            service = Service(fleet, store, nursery)
            app = create_app(service, ServerConfig().policy)
            answer = await httpx2.ASGITransport(app=app).handle_async_request(request)
            content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)

    async def _definitions(self, store: Store) -> list[LoadedPipeline]:
        if self._pipelines is not None:
            return self._load(self._pipelines)
        found = []
        for id in await store.pipelines():
            origin = await store.origin(id)
            if origin is not None:
                found += [each for each in self._load(Path(origin)) if each.id == id]
        return found

    def _load(self, path: Path) -> list[LoadedPipeline]:
        # Once for each command, which may make several requests: a file of Python runs when it is loaded.
        if path not in self._loaded:
            # A file may have been moved since; its letters can still be read.
            self._loaded[path] = list(Definitions(path).read().whole.pipelines) if path.exists() else []
        return self._loaded[path]


async def _add(fleet: Fleet, loaded: LoadedPipeline) -> None:
    try:
        await fleet.add(loaded.graph)
    except ConduitError as error:
        # The letters of a pipeline that has a problem now can still be read.
        log.warning("%s: pipeline %s cannot be used: %s", loaded.file, loaded.id, error.message)
