"""The life of a pipeline as others see it: status, who stopped it, and the first error."""

import time
from enum import StrEnum

import msgspec

from conduit_py.wire_error import WireError


class Status(StrEnum):
    """Where a pipeline is in its life."""

    CREATED = "created"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    DEGRADED = "degraded"


class Stopper(StrEnum):
    """Who asked a pipeline to stop: what the system stopped, it starts again; what the user stopped, it does not."""

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
    """What is known about a pipeline between and during runs."""

    status: Status = Status.CREATED
    stopped_by: Stopper | None = None
    error: LastError | None = None
    since: float = msgspec.field(default_factory=time.time)
