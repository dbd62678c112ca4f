"""Service: what the routes of the API work on, and the secrets that it removes from every answer."""

import logging
import re
from collections.abc import Iterator
from typing import Annotated, Any
from weakref import WeakSet

import trio
from fastapi import Depends
from fastapi.requests import HTTPConnection
from pydantic import BaseModel, SecretBytes, SecretStr

from conduit_py.config.secrets import SECRETS
from conduit_py.errors import EnvironmentUnfit, FleetError, ShuttingDown, StateFailed
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.reloader import Reloader
from conduit_py.pipeline import Pipeline
from conduit_py.sdk.plugin import Plugin
from conduit_py.store.store import Store
from conduit_py.wire_error import safe_text

log = logging.getLogger("conduit_py.server")

RETAIN_SECONDS = 60.0
COUNT_SECONDS = 1.0


class Redaction:
    """Masks secrets in texts: those of this process, and those in the options of the fleet's plugins."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        # Weak: a pipeline that was replaced must not be kept alive, with its options, by having been looked at.
        self._known: WeakSet[Pipeline] = WeakSet()

    def __call__(self, text: str) -> str:
        """The text with every secret of this process masked, and fit to be sent."""
        # Each time: a pipeline added a moment ago may already be quoted in an error.
        self.learn()
        return safe_text(SECRETS.redact(text))

    def learn(self) -> None:
        """Look for secrets in pipelines that came, or were replaced, since the last time."""
        for member in self._fleet:
            # Looking through all options takes a while, and this runs for every text that leaves the server.
            if member.pipeline not in self._known:
                self._known.add(member.pipeline)
                for secret in secrets_of(member.pipeline):
                    SECRETS.add(secret)


def secrets_of(pipeline: Pipeline) -> Iterator[str]:
    """Every secret that stands in the options of a pipeline's plugins."""
    ends = pipeline.ends
    processors = [*pipeline.processors, *(each for end in ends for each in end.processors)]
    plugins = [*(end.connector for end in ends), *(each.processor for each in processors)]
    for plugin in (*plugins, pipeline.dead_letters.policy.connector):
        # A plugin with problems has no options; reading them would raise.
        if isinstance(plugin, Plugin) and not plugin.problems:
            yield from _secrets_in(plugin.options)
    if pipeline.spark is not None:
        yield from (value for name, value in pipeline.spark.conf.items() if _SECRET.search(name))


_SECRET = re.compile("secret|password|token|access.?key", re.IGNORECASE)
"""Settings of Spark whose names match hold a secret."""


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode(errors="replace")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets_in(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _secrets_in(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _secrets_in(each)


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
        self.redaction = Redaction(fleet)
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
        """Collect the secrets of new pipelines every second, and delete old dead letters every minute."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget_old_letters)
            while True:
                # Also without a request: a log line may quote a secret before anybody calls the API.
                self.redaction.learn()
                await trio.sleep(1)

    async def _forget_old_letters(self) -> None:
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
