"""Process: what the handler of a step is told about the step, and the message that a failed step leaves."""

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from conduit_py.delivery.steps.step import Message, Step, Strategy

if TYPE_CHECKING:
    from conduit_py.delivery.steps.queue import Queue, Tailer

ERROR_TYPE = "step.failed"


class Process(msgspec.Struct, frozen=True):
    """The step as its handler sees it, and this one delivery of it.

    `delivery_key` is the same on every attempt at the same messages and different for any others: a
    handler with side effects makes them idempotent by it.
    """

    id: str
    config: Mapping[str, Any]
    delivery_key: str
    strategy: Strategy
    errors: str | None
    system: Mapping[str, Any]
    """What the graph was given for all its handlers: connections, clients and the like."""
    options: Mapping[str, Any]
    tailers: "Mapping[str, Tailer]" = MappingProxyType({})
    appenders: "Mapping[str, Queue]" = MappingProxyType({})


def error_message(step: Step, messages: Mapping[str, Message], error: Exception) -> Message:
    """What goes to the error queue: which step, what it had in hand, and why it failed."""
    return {
        "type": ERROR_TYPE,
        "step": step.described(),
        "messages": dict(messages),
        "cause": {
            "class": type(error).__qualname__,
            "message": str(error),
            "trace": "".join(traceback.format_exception(error)),
        },
    }
