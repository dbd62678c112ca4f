"""Step: one function between queues, as its author writes it; its filters, and what its handler sees."""

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from conduit_py.errors import Problem

if TYPE_CHECKING:
    from conduit_py.steps.queue import Queue, Tailer


Message: TypeAlias = dict[str, Any]
"""What a queue holds: a map of plain values."""

Outputs: TypeAlias = Mapping[str, Message | None] | None
Handler: TypeAlias = Callable[..., Awaitable[Outputs] | Outputs]
"""Takes the process and the messages by input name; gives the messages by output name, or nothing."""

Strategy: TypeAlias = Literal["exactly_once", "at_most_once"]
OnError: TypeAlias = Literal["stop", "drop"]

ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class StepKind(Enum):
    """What a step is, decided by its shape alone."""

    SOURCE = "source"
    """Only an id: a queue that code outside the graph appends to."""
    SINK = "sink"
    JOIN = "join"
    JOIN_FORK = "join and fork"
    IMPERATIVE = "imperative"
    """Is handed queues to read and write as it likes, outside the exactly-once protocol."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a graph.

    `inputs` and `outputs` map the names that the handler uses to the ids of queues. A step with
    `inputs` waits for one message from each of them, one with `alts` takes the next message of
    whichever has one. What the handler returns for no output is not sent: leaving an output out
    routes. A handler that raises sends its messages to the `errors` queue; without one `on_error`
    decides: "stop" ends this step until the graph is started again, "drop" logs and goes on.
    """

    id: str
    handler: Handler | None = None
    inputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    alts: Mapping[str, str] = msgspec.field(default_factory=dict)
    outputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    tailers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Queues that the handler reads by itself. What it reads is not part of the delivery key."""
    appenders: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Queues that the handler writes by itself. What it writes may be written again after a crash."""
    errors: str | None = None
    on_error: OnError = "stop"
    topics: Sequence[str] = ()
    """Take only messages with one of these topics; wins over `types`."""
    types: Sequence[str] = ()
    """Take only messages of one of these types."""
    strategy: Strategy = "exactly_once"
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def bindings(self) -> Mapping[str, str]:
        """The inputs, of whichever kind, by name."""
        return self.alts or self.inputs

    @property
    def kind(self) -> StepKind:
        if self.tailers or self.appenders:
            return StepKind.IMPERATIVE
        if not self.bindings:
            return StepKind.SOURCE
        if not self.outputs:
            return StepKind.SINK
        return StepKind.JOIN if len(self.outputs) == 1 else StepKind.JOIN_FORK

    @property
    def queues(self) -> list[str]:
        """Every queue this step touches; a source's queue has the id of the source."""
        if self.kind is StepKind.SOURCE:
            return [self.id]
        bound = [*self.bindings.values(), *self.outputs.values(), *self.tailers.values(), *self.appenders.values()]
        return list(dict.fromkeys([*bound, *([self.errors] if self.errors else [])]))

    def describe(self) -> dict[str, Any]:
        """Its configuration as plain values, as an error message carries it."""
        said = {
            "id": self.id,
            "inputs": dict(self.inputs),
            "alts": dict(self.alts),
            "outputs": dict(self.outputs),
            "tailers": dict(self.tailers),
            "appenders": dict(self.appenders),
            "errors": self.errors,
            "topics": list(self.topics),
            "types": list(self.types),
            "strategy": self.strategy,
        }
        return {name: value for name, value in said.items() if value}


def problems_of(steps: Sequence[Step], errors: str | None = None) -> list[Problem]:
    """Everything that is wrong with the steps of a graph, together."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for index, step in enumerate(steps):
        path = f"steps[{index}]"
        if step.id in seen:
            problems.append(Problem(f"{path}.id", f"{step.id!r} is the id of another step already", "ids are unique"))
        seen.add(step.id)
        problems += [Problem(f"{path}.{name}", what, hint) for name, what, hint in _mistakes(step)]
    if errors is not None and not _fit(errors):
        problems.append(Problem("errors", f"{errors!r} cannot name a queue", _SPELLING))
    return problems


_SPELLING = "use letters, digits, - and _"


def _fit(id: object) -> bool:
    return isinstance(id, str) and 0 < len(id) <= 128 and ID_CHARACTERS.issuperset(id)


def _mistakes(step: Step) -> list[tuple[str, str, str | None]]:
    found: list[tuple[str, str, str | None]] = []
    for id in [step.id, *step.queues]:
        if not _fit(id):
            found.append(("id", f"{id!r} cannot name a step or a queue", _SPELLING))
    if step.inputs and step.alts:
        found.append(("alts", "cannot be given together with inputs", "split the step in two"))
    for name in ("inputs", "alts", "outputs", "tailers", "appenders"):
        bound = list(getattr(step, name).values())
        if len(set(bound)) < len(bound):
            found.append((name, "binds two names to one queue", "give each name a queue of its own"))
    if step.kind is StepKind.SOURCE and (step.handler is not None or step.outputs):
        found.append(("inputs", "are missing: only a source has none, and a source has no handler", None))
    if step.kind is not StepKind.SOURCE and step.handler is None:
        found.append(("handler", "is missing", "give the function that handles its messages"))
    if step.kind is StepKind.IMPERATIVE and not step.bindings:
        found.append(("inputs", "are missing: nothing would ever call the handler", "give inputs or alts"))
    if step.kind is StepKind.IMPERATIVE and len(step.outputs) > 1:
        found.append(("outputs", "can be one at most beside tailers or appenders", "write the rest by an appender"))
    return found


def filter_messages(step: Step, messages: Mapping[str, Message]) -> dict[str, Message]:
    """The messages that pass the filters of the step, by name. The others are consumed all the same."""
    if step.topics:
        return {name: message for name, message in messages.items() if _has_topic(step, message)}
    if step.types:
        return {name: message for name, message in messages.items() if message.get("type") in step.types}
    return dict(messages)


def _has_topic(step: Step, message: Message) -> bool:
    topics = message.get("topics")
    return isinstance(topics, Mapping) and any(topics.get(topic) for topic in step.topics)


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
        "step": step.describe(),
        "messages": dict(messages),
        "cause": {
            "class": type(error).__qualname__,
            "message": str(error),
            "trace": "".join(traceback.format_exception(error)),
        },
    }
