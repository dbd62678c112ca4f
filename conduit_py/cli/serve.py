"""The command `serve`: many pipelines in one process, until a signal, with an API to see and operate them.

`watch` reloads them when their files or secrets change.
"""

import gc
import logging
import os
import sys
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from conduit_py.child.pool import ProcessPool
from conduit_py.child.program import CHILD_OBSERVER
from conduit_py.cli.errors import short_text
from conduit_py.cli.output import ExitCode, LogFormat, log_for_server, put
from conduit_py.cli.run import observing, require_observers, stop_on_signal
from conduit_py.cli.state import choose_state, claim_ids
from conduit_py.config.definitions import Definitions, LoadedFiles
from conduit_py.errors import EnvironmentUnfit, describe
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.pipeline_log import SIGNAL
from conduit_py.lifecycle.reloader import GONE_SECONDS, Reloader
from conduit_py.sdk.endpoint import HAS_SERVER
from conduit_py.status import Stopper
from conduit_py.store.store import open_store

if TYPE_CHECKING:
    from conduit_py.server.serve import ServerConfig

log = logging.getLogger("conduit_py.server")

LOOK_SECONDS = 2.0
"""How often to look for changes without a notification, as on a network file system."""
QUIET_SECONDS = 0.2
"""How long files must not change before they are read: an editor may not have finished."""
PATIENCE_SECONDS = 5.0
SECRETS_SECONDS = 5.0
"""How often to look whether secrets were rotated."""


@dataclass(frozen=True)
class ServeOptions:
    """Which pipelines are served, where their state is, and how long a stop may take."""

    pipelines: Path
    state: str | None
    """None for the state of the project in the working directory."""
    stop_timeout: float
    log_format: LogFormat | None = None
    """None for JSON, or for text if stderr is a terminal."""
    debug: bool = False
    watch: bool = False
    processes: int = 0
    """How many processes share the pipelines; 0 for the server's own."""
    observe: tuple[str, ...] = ()
    """Which observers follow the pipelines: see `observing`."""


@dataclass(frozen=True)
class ListenOptions:
    """Where the API listens, and its files for tokens and TLS."""

    host: str
    port: int
    token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None


def serve(serving: ServeOptions, listening: ListenOptions) -> ExitCode:
    """Serve until a signal. Raises what prevents a start; a pipeline file with problems is only logged."""
    # First of all: an unsafe address or a wrong token file must end the command before any code of a file runs.
    config = _config(listening)
    log_for_server(serving.log_format or ("text" if sys.stderr.isatty() else "json"), debug=serving.debug)
    if not serving.pipelines.exists():
        hint = "name a folder of pipeline files with --pipelines"
        raise EnvironmentUnfit(f"there is no {serving.pipelines}", suggestion=hint)
    if serving.processes and find_spec("cloudpickle") is None:
        hint = "pip install 'conduit-dataflow[processes]'"
        raise EnvironmentUnfit("--processes needs cloudpickle, which is not installed", suggestion=hint)
    require_observers(serving.observe)
    # Here, not in the event loop: what the files import may take a while.
    definitions = Definitions(serving.pipelines)
    found = definitions.read()
    # As `run` does it: what is there now stays until the end.
    gc.freeze()
    return trio.run(_serve, serving, config, definitions, found)


def _config(listening: ListenOptions) -> "ServerConfig":
    from conduit_py.server.access import load_tokens
    from conduit_py.server.serve import ServerConfig

    config = ServerConfig(
        host=listening.host,
        port=listening.port,
        tokens=load_tokens(listening.token_file),
        allowed_hosts=frozenset(listening.allowed_hosts),
        tls_cert=listening.tls_cert,
        tls_key=listening.tls_key,
        tls_client_ca=listening.tls_client_ca,
    )
    config.check()
    return config


async def _serve(
    serving: ServeOptions, config: "ServerConfig", definitions: Definitions, reading: LoadedFiles
) -> ExitCode:
    from conduit_py.server.serve import serve_api
    from conduit_py.server.service import Service
    from conduit_py.telemetry.metrics_text import collect

    project_state = choose_state()
    # Before any task begins: they inherit it.
    HAS_SERVER.set(True)
    if "otel" in serving.observe:
        os.environ[CHILD_OBSERVER] = "conduit_py.telemetry.open_telemetry"
    fleets: list[Fleet] = []
    async with (
        await open_store(serving.state or project_state) as store,
        observing(serving.observe, lambda sink: collect(fleets[0], sink) if fleets else None),
        trio.open_nursery() as nursery,
    ):
        claim = partial(claim_ids, store, project_state) if serving.state is None else None
        if claim is not None:
            await claim({each.id: each.file for each in reading.whole.pipelines})
        fleet = Fleet(store, nursery, engine=ProcessPool(serving.processes, nursery).supervise)
        fleets.append(fleet)
        reloader = Reloader(fleet, store, definitions, nursery, shown=short_text, claim=claim)
        service = Service(fleet, store, nursery, reloader=reloader)
        ending = ServerShutdown(fleet, service.closing, serving.stop_timeout)
        # Before files are added: a signal during a long start must not be lost.
        await nursery.start(stop_on_signal, ending.stop, ending.force)
        await reloader.begin(reading)
        nursery.start_soon(service.watch)
        nursery.start_soon(watch_secrets, reloader)
        async with trio.open_nursery() as serving_api:
            # Bound before anything starts: a server that nobody can reach must not move a record.
            url = await serving_api.start(serve_api, service, config, ending.drained)
            await fleet.boot()
            service.booted.set()
            if serving.watch:
                nursery.start_soon(watch, reloader, service.closing)
            put(f"serving {_count(len(fleet))} on {url}")
            await ending.drain()
        # What still runs here watches files and letters; it would never end by itself.
        nursery.cancel_scope.cancel()
    return ExitCode.OK


class ServerShutdown:
    """Ends a server: first the event streams and the pipelines, then the API."""

    def __init__(self, fleet: Fleet, closing: trio.Event, seconds: float) -> None:
        self._fleet = fleet
        self._closing = closing
        self._seconds = seconds
        self.drained = trio.Event()

    def stop(self) -> None:
        """Begin a graceful stop; returns at once."""
        log.info("stopping; what has been read is delivered first, for at most %g s", self._seconds)
        self._closing.set()

    def force(self) -> None:
        """Stop at once what has not stopped yet."""
        log.warning("stopping at once; what is in flight will be read again")
        # Also for a drain that has not begun: it reads this when it starts.
        self._seconds = 0.0
        for member in self._fleet:
            if member.running:
                self._fleet.stop(member.pipeline.id, force=True, by=Stopper.SYSTEM, asked_by=SIGNAL)

    async def drain(self) -> None:
        """Wait until a stop is requested, then drain every pipeline."""
        await self._closing.wait()
        await self._fleet.shutdown(self._seconds, asked_by=SIGNAL)
        # Only now: while pipelines drain, the API still answers how far they are.
        self.drained.set()


def _count(pipelines: int) -> str:
    return "1 pipeline" if pipelines == 1 else f"{pipelines} pipelines"


async def watch(reloader: Reloader, until: trio.Event) -> None:
    """Reload whenever files change, until the event. Files are read once they have not changed for a moment."""
    definitions = reloader.definitions
    watcher = _Watcher(definitions, until)
    while not until.is_set():
        await watcher.wait_for_change()
        # Waiting also ends after LOOK_SECONDS, and for files that are not ours.
        if until.is_set() or await _stamp(definitions) == definitions.seen:
            continue
        await _wait_for_quiet(definitions)
        try:
            await reloader.reload(gone_seconds=GONE_SECONDS)
        except Exception:  # a boundary: no file may end the server
            log.exception("the files could not be read")


async def watch_secrets(reloader: Reloader) -> None:
    """Look for rotated secrets until cancelled."""
    while True:
        await trio.sleep(SECRETS_SECONDS)
        try:
            await reloader.check_secrets()
        except Exception:  # a boundary: no file may end the server
            log.exception("the files of secrets could not be compared")


async def _stamp(definitions: Definitions) -> object:
    # In a thread: on a network file system a stat can take seconds.
    return await trio.to_thread.run_sync(definitions.stamp)


async def _wait_for_quiet(definitions: Definitions) -> None:
    """Wait until files stop changing, but not for ever: one that never does may be a log."""
    before = await _stamp(definitions)
    with trio.move_on_after(PATIENCE_SECONDS):
        while True:
            await trio.sleep(QUIET_SECONDS)
            now = await _stamp(definitions)
            if now == before:
                return
            before = now


class _Watcher:
    """Waits for changes in the relevant folders, by notifications of the operating system."""

    def __init__(self, definitions: Definitions, until: trio.Event) -> None:
        self._definitions = definitions
        self._until = until
        self._last_error = ""

    async def wait_for_change(self) -> None:
        """Return when something may have changed, after LOOK_SECONDS at the latest."""
        from watchfiles import awatch

        folders = [folder for folder in sorted(self._definitions.folders()) if folder.is_dir()]
        changes = awatch(
            *folders,
            watch_filter=lambda _, path: self._definitions.counts(path),
            debounce=400,
            step=50,
            rust_timeout=round(LOOK_SECONDS * 1000),
            yield_on_timeout=True,
            # Folders below hold no pipelines, but maybe their output, which changes all the time.
            recursive=False,
            stop_event=self._until,
        )
        try:
            # Closed at once: an abandoned generator would keep its watching thread until it is collected.
            async with aclosing(changes):
                await anext(changes, None)
        except Exception as error:  # a boundary: no failure to watch may end the server
            # Once for each reason: watching is tried again every two seconds, and the log would fill up.
            if self._last_error != (message := describe(error)):
                self._last_error = message
                log.warning("file changes are detected by polling, because watching fails: %s", message)
            await trio.sleep(LOOK_SECONDS)
