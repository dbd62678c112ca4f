"""Service: what the routes of the API work on, and what they remember between two requests."""

import logging
from typing import Annotated

import trio
from fastapi import Depends
from fastapi.requests import HTTPConnection

from conduit_py.errors import EnvironmentUnfit, FleetError, ShuttingDown, StateFailed
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import Reloader
from conduit_py.server.redaction import Redaction
from conduit_py.store.store import Store

log = logging.getLogger("conduit_py.server")

RETAIN_SECONDS = 60.0
COUNT_SECONDS = 1.0


class Service:
    """A fleet, its store, and the two events in the life of a server: everything was started; it is about to end.

    `nursery` is for what goes on after its request was answered; it must outlive the API.
    """

    def __init__(self, fleet: Fleet, store: Store, nursery: trio.Nursery, *, reloader: Reloader | None = None) -> None:
        self.fleet = fleet
        self.store = store
        self.reloader = reloader
        self.booted = trio.Event()
        self.closing = trio.Event()
        self.redaction = Redaction(fleet)
        self._nursery = nursery

    def restart(self, id: str) -> None:
        """Restart a pipeline; returns before it has stopped."""
        member = self.fleet[id]
        if self.closing.is_set():
            raise ShuttingDown("the server is shutting down and starts nothing any more")
        if member.running:
            self._nursery.start_soon(self._restart, id)
        else:
            self.fleet.start(id)

    async def _restart(self, id: str) -> None:
        try:
            await self.fleet.restart(id)
        except FleetError as error:
            # Somebody else started it, removed it, or shut the server down while it was stopping: they win.
            log.info("pipeline %s was not restarted: %s", id, error.message)
        except Exception:  # a border: a restart that fails may not end the server
            log.exception("pipeline %s could not be restarted", id)

    async def watch(self) -> None:
        """Look at every pipeline once a second, so that its secrets are known before they are quoted.

        Once a minute, have the dead letters forgotten that their pipelines want to keep no longer.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget_old_letters)
            while True:
                self.redaction.learn()
                await trio.sleep(1)

    async def _forget_old_letters(self) -> None:
        while True:
            try:
                await self.fleet.letters.forget_old()
            except (StateFailed, EnvironmentUnfit) as error:
                log.warning("old dead letters could not be forgotten: %s", error.message)
            await trio.sleep(RETAIN_SECONDS)

    async def count_letters(self) -> None:
        """Count the dead letters again. If the store fails or is slow, the last numbers stay."""
        try:
            with trio.move_on_after(COUNT_SECONDS):
                await self.store.letters.count()
        except (StateFailed, EnvironmentUnfit) as error:
            log.warning("the dead letters could not be counted: %s", error.message)


async def _service_of(connection: HTTPConnection) -> Service:
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service


InService = Annotated[Service, Depends(_service_of)]
"""What a route declares to be given the service."""
