"""The state of a pipeline: its status, who stopped it, and its first error."""

import time
from enum import StrEnum

import msgspec

from conduit_py.wire_error import WireError


class Status(StrEnum):
    """The status of a pipeline."""

    CREATED = "created"
    WAITING = "waiting"
    """Until the next time of its schedule."""
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    DEGRADED = "degraded"


class Stopper(StrEnum):
    """Who stopped a pipeline. A server starts those that the system stopped again, but not those of the user."""

    USER = "user"
    SYSTEM = "system"


class LastError(msgspec.Struct, frozen=True):
    """The first error of the last run that failed, kept as text."""

    code: str
    message: str
    node: str | None = None
    suggestion: str | None = None
    at: float = msgspec.field(default_factory=time.time)

    @classmethod
    def of(cls, error: BaseException) -> "LastError":
        wire_error = WireError.of(error)
        return cls(wire_error.code, wire_error.message, wire_error.node, wire_error.suggestion)


class PipelineState(msgspec.Struct, frozen=True):
    """The state of a pipeline, during and between runs."""

    status: Status = Status.CREATED
    stopped_by: Stopper | None = None
    error: LastError | None = None
    since: float = msgspec.field(default_factory=time.time)
    next_run: float | None = None
    """When the sources of a scheduled pipeline are read next, in seconds since 1970. None while a run is unfinished."""
