"""The log of a pipeline's life: started, recovering, ended, and who asked for it.

Each line has its facts beside its text, for logs in JSON: `pipeline`, `event`, and what the event adds.
"""

import logging
import time
from datetime import UTC, datetime
from typing import Any

from conduit_py.status import LastError, PipelineState, Status
from conduit_py.stream.meter import Progress

log = logging.getLogger("conduit_py")

SERVER_START = "server start"
FILE_RELOAD = "file reload"
SIGNAL = "signal"
PROGRAM = "program"
"""Who asks if nobody says: the program that the fleet is part of."""


def log_start(id: str, asked_by: str) -> None:
    _log(logging.INFO, id, "started", f"is started (asked by {asked_by})", asked_by=asked_by)


def log_recovery(id: str, error: LastError, seconds: float, failures: int) -> None:
    """Log a failure after which the pipeline starts again in so many seconds; `failures` counts those in a row."""
    next_try = _utc(time.time() + seconds)
    where = f" in {error.node}" if error.node else ""
    # The error comes last: it may be long, and what a record put into it must not pass for the facts.
    text = f"failed{where} (failure {failures} in a row); next try in {seconds:.3g} s, at {next_try}: {_text(error)}"
    facts = {"failures": failures, "next_try_at": next_try, "next_try_seconds": round(seconds, 3)}
    _log(logging.WARNING, id, "recovering", text, **_facts(error), **facts)


def log_end(id: str, state: PipelineState, progress: Progress, asked_by: str) -> None:
    """Log how a pipeline ended. `asked_by` had it stopped or, if nobody did, started."""
    counts = {"read": progress.read, "acked": progress.acked, "dead_letters": progress.dead_letters}
    numbers = f"{progress.read:,} read, {progress.acked:,} acked, {progress.dead_letters:,} dead letters"
    error, facts = state.error, {**counts, "asked_by": asked_by}
    if state.status is Status.DEGRADED and error is not None:
        where = f" in {error.node}" if error.node else ""
        text = f"is degraded: it failed{where}, and does not start again by itself; {numbers}: {_text(error)}"
        _log(logging.ERROR, id, "degraded", text, **_facts(error), **facts)
        return
    text = f"is {state.status} (asked by {asked_by}): {numbers}"
    if error is None:
        _log(logging.INFO, id, state.status, text, **facts)
    else:
        # Nothing waits for this pipeline any more: whoever stopped it should see what was wrong with it.
        _log(logging.WARNING, id, state.status, f"{text}; last error: {_text(error)}", **_facts(error), **facts)


def log_left_alone(id: str, state: PipelineState) -> None:
    """Log that a pipeline is not started with the others, because of how it ended."""
    error = state.error
    by = f", by the {state.stopped_by}" if state.stopped_by else ""
    text = f"is not started: it is {state.status}{by}, since {_utc(state.since)}"
    level = logging.WARNING if state.status is Status.DEGRADED else logging.INFO
    if error is None:
        _log(level, id, "left alone", text)
    else:
        _log(level, id, "left alone", f"{text}; last error: {_text(error)}", **_facts(error))


def _log(level: int, id: str, event: str, text: str, **facts: Any) -> None:
    log.log(level, "pipeline %s %s", id, text, extra={"facts": {"pipeline": id, "event": event, **facts}})


def _text(error: LastError) -> str:
    advice = f" ({error.suggestion})" if error.suggestion else ""
    return f"{error.message} [{error.code}]{advice}"


def _facts(error: LastError) -> dict[str, Any]:
    return {"node": error.node, "code": error.code, "error": error.message, "suggestion": error.suggestion}


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
