"""Service: what the routes of the API work on, and the secrets that it removes from every answer."""

import logging
from collections.abc import Callable
from typing import Annotated, TypeAlias

import trio
from fastapi import Depends
from fastapi.requests import HTTPConnection

from conduit_py.errors import EnvironmentUnfit, FleetError, ShuttingDown, StateFailed
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import Reloader
from conduit_py.redaction import redact
from conduit_py.store.store import Store
from conduit_py.stream.dead_letters import RETAIN_SECONDS
from conduit_py.wire_error import safe_text

log = logging.getLogger("conduit_py.server")

COUNT_SECONDS = 1.0
VIEW_THREADS = 2
"""How many views of dead letters are made at a time."""


Redaction: TypeAlias = Callable[[str], str]
"""Masks every secret of this process in a text."""


def redact_answer(text: str) -> str:
    """The text with every secret of this process masked, and fit to be sent."""
    return safe_text(redact(text))


class Service:
    """A fleet and its store. `booted` is set when every pipeline was started, `closing` when the server begins to end.

    `nursery` runs what continues after its request was answered; it must outlive the API.
    """

    def __init__(self, fleet: Fleet, store: Store, nursery: trio.Nursery, *, reloader: Reloader | None = None) -> None:
        self.fleet = fleet
        self.store = store
        self.reloader = reloader
        self.booted = trio.Event()
        self.closing = trio.Event()
        self.redaction: Redaction = redact_answer
        self.view_threads = trio.CapacityLimiter(VIEW_THREADS)
        self._nursery = nursery

    def restart(self, id: str, *, asked_by: str) -> None:
        """Restart a pipeline; returns before it has stopped."""
        member = self.fleet[id]
        if self.closing.is_set():
            raise ShuttingDown("the server is shutting down and starts nothing any more")
        if member.running:
            # In the background: a graceful stop may take longer than a client waits for an answer.
            self._nursery.start_soon(self._restart, id, asked_by)
        else:
            self.fleet.start(id, asked_by=asked_by)

    async def _restart(self, id: str, asked_by: str) -> None:
        try:
            await self.fleet.restart(id, asked_by=asked_by)
        except FleetError as error:
            # Somebody else started it, removed it, or shut the server down while it was stopping: they win.
            log.info("pipeline %s was not restarted: %s", id, error.message)
        except Exception:  # a boundary: a restart that fails may not end the server
            log.exception("pipeline %s could not be restarted", id)

    async def watch(self) -> None:
        """Delete old dead letters every minute."""
        while True:
            try:
                await self.fleet.letters.forget_old()
            except (StateFailed, EnvironmentUnfit) as error:
                # Tried again in a minute: a full disk may be temporary, and the server must go on.
                log.warning("dead letters past their retention could not be deleted: %s", error.message)
            await trio.sleep(RETAIN_SECONDS)

    async def count_letters(self) -> None:
        """Count the dead letters again. If the store fails or is slow, the last numbers stay."""
        try:
            # Limited: a scrape must be answered even while the store is stuck, that is when it is needed most.
            with trio.move_on_after(COUNT_SECONDS):
                await self.store.letters.count()
        except (StateFailed, EnvironmentUnfit) as error:
            log.warning("the dead letters could not be counted: %s", error.message)


async def _service_of(connection: HTTPConnection) -> Service:
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service


InService = Annotated[Service, Depends(_service_of)]
"""The type of a route's parameter that receives the service."""
