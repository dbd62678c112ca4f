"""PipelineLog: the log of a pipeline's life: started, recovering, ended, and who asked for it.

Each line has its facts beside its text, for logs in JSON: `pipeline`, `event`, and what the event adds. The last lines
are kept for those who do not read logs.
"""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec

from conduit_py.graph.node import Graph
from conduit_py.redaction import redact
from conduit_py.status import LastError, PipelineState, Status
from conduit_py.stream.meter import Progress
from conduit_py.stream.run import Ending

log = logging.getLogger("conduit_py")

RunObserver: TypeAlias = Callable[[Graph, Callable[[], Awaitable[Ending]]], Awaitable[Ending]]


async def _only_execute(graph: Graph, execute: Callable[[], Awaitable[Ending]]) -> Ending:
    return await execute()


RUN_OBSERVER: Final = ContextVar[RunObserver]("RUN_OBSERVER", default=_only_execute)
"""Executes a run of a graph, and may note its begin and its end. Set before pipelines begin, which inherit it."""

SERVER_START = "server start"
FILE_RELOAD = "file reload"
SIGNAL = "signal"
PROGRAM = "program"
"""Who asks if nobody says: the program that the fleet is part of."""
EVENTS_MAX = 20
TEXT_MAX = 1000
"""In characters; so the events of a pipeline take 100 kB at most."""


class LoggedEvent(msgspec.Struct, frozen=True):
    """Something that happened to a pipeline, in the words of the log."""

    at: float
    event: str
    level: str
    text: str


class PipelineLog:
    """Logs what happens to one pipeline, and keeps the last events. Equal failures in a row are one event, the last."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._events: deque[LoggedEvent] = deque(maxlen=EVENTS_MAX)
        self._last_failure: LastError | None = None
        self.changes = 0
        """How often a change of its definition took effect."""

    @property
    def events(self) -> list[LoggedEvent]:
        """The last events, the oldest first."""
        return list(self._events)

    def note(self, text: str) -> None:
        """Keep what somebody else has logged: a change of the definition."""
        self.changes += 1
        self._keep(logging.INFO, "changed", text)

    def log_start(self, asked_by: str) -> None:
        self._log(logging.INFO, "started", f"is started (asked by {asked_by})", asked_by=asked_by)

    def log_place(self, place: str, *, unusual: bool = False) -> None:
        """Log in which process it runs, where there are several."""
        self._log(logging.WARNING if unusual else logging.INFO, "placed", f"runs in {place}", place=place)

    def log_recovery(self, error: LastError, seconds: float, failures: int) -> None:
        """Log a failure after which the pipeline starts again in so many seconds; `failures` counts those in a row."""
        next_try = _utc(time.time() + seconds)
        where = f" in {error.node}" if error.node else ""
        # The error comes last: it may be long, and what a record put into it must not pass for the facts.
        text = (
            f"failed{where} (failure {failures} in a row); next try in {seconds:.3g} s, at {next_try}: {_text(error)}"
        )
        self._forget_equal_failure(error)
        facts = {"failures": failures, "next_try_at": next_try, "next_try_seconds": round(seconds, 3)}
        self._log(logging.WARNING, "recovering", text, **_facts(error), **facts)

    def log_wait(self, what: str, progress: Progress) -> None:
        """Log that a pipeline with a schedule waits; the counts are of all its runs so far."""
        text = f"waits for {what}: {progress.read:,} read, {progress.acked:,} acked so far"
        self._log(logging.INFO, "waiting", text, read=progress.read, acked=progress.acked)

    def log_end(self, state: PipelineState, progress: Progress, asked_by: str) -> None:
        """Log how a pipeline ended. `asked_by` had it stopped or, if nobody did, started."""
        counts = {"read": progress.read, "acked": progress.acked, "dead_letters": progress.dead_letters}
        numbers = f"{progress.read:,} read, {progress.acked:,} acked, {progress.dead_letters:,} dead letters"
        error, facts = state.error, {**counts, "asked_by": asked_by}
        if state.status is Status.DEGRADED and error is not None:
            where = f" in {error.node}" if error.node else ""
            text = f"is degraded: it failed{where}, and does not start again by itself; {numbers}: {_text(error)}"
            self._log(logging.ERROR, "degraded", text, **_facts(error), **facts)
            return
        text = f"is {state.status} (asked by {asked_by}): {numbers}"
        if error is None:
            self._log(logging.INFO, state.status, text, **facts)
        else:
            # Nothing waits for this pipeline any more: the user who stopped it should see what was wrong with it.
            self._log(logging.WARNING, state.status, f"{text}; last error: {_text(error)}", **_facts(error), **facts)

    def log_left_alone(self, state: PipelineState) -> None:
        """Log that a pipeline is not started with the others, because of how it ended."""
        error = state.error
        by = f", by the {state.stopped_by}" if state.stopped_by else ""
        text = f"is not started: it is {state.status}{by}, since {_utc(state.since)}"
        level = logging.WARNING if state.status is Status.DEGRADED else logging.INFO
        if error is None:
            self._log(level, "left alone", text)
        else:
            self._log(level, "left alone", f"{text}; last error: {_text(error)}", **_facts(error))

    def _log(self, level: int, event: str, text: str, **facts: Any) -> None:
        self._keep(level, event, text)
        log.log(
            level, "pipeline %s %s", self._id, text, extra={"facts": {"pipeline": self._id, "event": event, **facts}}
        )

    def _forget_equal_failure(self, error: LastError) -> None:
        """Drop the last event if it is this failure too: a pipeline that fails for hours would push out all others."""
        failure = msgspec.structs.replace(error, at=0.0)
        if failure == self._last_failure and self._events and self._events[-1].event == "recovering":
            self._events.pop()
        self._last_failure = failure

    def _keep(self, level: int, event: str, text: str) -> None:
        # Masked before it is cut: a part of a secret would not be recognised.
        kept = LoggedEvent(time.time(), event, logging.getLevelName(level).lower(), redact(text)[:TEXT_MAX])
        self._events.append(kept)


def _text(error: LastError) -> str:
    advice = f" ({error.suggestion})" if error.suggestion else ""
    return f"{error.message} [{error.code}]{advice}"


def _facts(error: LastError) -> dict[str, Any]:
    return {"node": error.node, "code": error.code, "error": error.message, "suggestion": error.suggestion}


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
