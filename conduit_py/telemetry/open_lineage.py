"""OpenLineage: an event at the start and at the end of every run, with the datasets that its connectors name.

The official client sends them, as its own variables OPENLINEAGE_* or its file say. It works in a thread with a
bounded queue: a backend that is slow or gone costs events, never records.
"""

import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Any

import trio
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run
from openlineage.client.uuid import generate_new_uuid

from conduit_py import __version__
from conduit_py.errors import RunError
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.pipeline_log import RUN_OBSERVER
from conduit_py.redaction import redact
from conduit_py.sdk.plugin import Connector, Dataset
from conduit_py.stream.run import Ending, How

log = logging.getLogger("conduit_py")

PRODUCER = f"urn:conduit-dataflow:{__version__}"
EVENTS_MAX = 1000
END_SECONDS = 2.0
"""How long the end of a process waits for the last events. A backend that is gone must not hold up a stop."""

ENDS = {
    How.COMPLETED: RunState.COMPLETE,
    How.STOPPED: RunState.ABORT,
    How.FORCED: RunState.ABORT,
    How.FAILED: RunState.FAIL,
}


@asynccontextmanager
async def open_lineage() -> AsyncIterator[None]:
    """Send events of the runs that begin in this block."""
    sender = EventSender(OpenLineageClient())

    async def observe(graph: Graph, execute: Callable[[], Awaitable[Ending]]) -> Ending:
        run = str(generate_new_uuid())
        sender.put(run_event(graph, run, RunState.START))
        # What ends without an ending of its own is cancelled from outside.
        ending = Ending(How.FORCED)
        try:
            ending = await execute()
            return ending
        finally:
            sender.put(run_event(graph, run, ENDS[ending.how], ending.error))

    RUN_OBSERVER.set(observe)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(sender.end)


class EventSender:
    """Sends events in their order, in a thread of its own. Events that find the queue full are dropped."""

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._events: Queue[RunEvent | None] = Queue(EVENTS_MAX)
        # A daemon: the process must not wait for a backend that does not answer.
        self._thread = threading.Thread(target=self._send_all, name="openlineage", daemon=True)
        self._thread.start()

    def put(self, event: RunEvent | None) -> None:
        try:
            self._events.put_nowait(event)
        except Full:
            log.warning("an event for OpenLineage was dropped: the backend is too slow")

    def end(self) -> None:
        """Send what is left, for two seconds at most."""
        self.put(None)
        self._thread.join(END_SECONDS)

    def _send_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # a boundary: an error of an observer must not end what it observes
                log.warning("an event for OpenLineage was not sent: %s", redact(f"{type(error).__name__}: {error}"))


def run_event(graph: Graph, run: str, state: RunState, error: RunError | None = None) -> RunEvent:
    """Make the event of a run. It has names and codes, and no part of a record."""
    pipeline = graph.pipeline
    namespace = os.environ.get("OPENLINEAGE_NAMESPACE", "default")
    engine = processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="conduit-py")
    facets: dict[str, Any] = {"processing_engine": engine}
    if error is not None:
        # Not the message, which may quote a record.
        text = f"{error.code} in {error.node}" if error.node else error.code
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(text, "PYTHON")
    endless = any(source.connector is not None and source.connector.endless for source in pipeline.sources)
    kind = job_type_job.JobTypeJobFacet("STREAMING" if endless else "BATCH", "CONDUIT", "PIPELINE")
    inputs = [each for source in pipeline.sources for each in datasets_of(source.connector)]
    outputs = [each for destination in pipeline.destinations for each in datasets_of(destination.connector)]
    return RunEvent(
        eventTime=datetime.now(UTC).isoformat(),
        eventType=state,
        run=Run(run, facets),
        job=Job(namespace, pipeline.id, {"jobType": kind}),
        producer=PRODUCER,
        inputs=[InputDataset(each.namespace, each.name) for each in inputs],
        outputs=[OutputDataset(each.namespace, each.name) for each in outputs],
    )


def datasets_of(connector: Connector[Any] | None) -> list[Dataset]:
    """Return the datasets of a connector, each once, without secrets; none if it cannot name them."""
    if connector is None:
        return []
    try:
        named = connector.declared.datasets()
    except Exception as error:  # plugin boundary: the connector is the user's
        log.warning("%s names no datasets: %s", type(connector).__name__, redact(f"{type(error).__name__}: {error}"))
        return []
    return list(dict.fromkeys(Dataset(redact(each.namespace), redact(each.name)) for each in named))
