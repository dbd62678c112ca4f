"""Step: a function between queues as its author declares it, its filters, and what its handler gets."""

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from conduit_py.errors import Problem, text_of

if TYPE_CHECKING:
    from conduit_py.steps.queue import Queue, Tailer


Message: TypeAlias = dict[str, Any]
"""A message of a queue: a map of plain values."""

Outputs: TypeAlias = Mapping[str, Message | None] | None
Handler: TypeAlias = Callable[..., Awaitable[Outputs] | Outputs]
"""Takes the process and the messages by input name; returns messages by output name, or None."""

Strategy: TypeAlias = Literal["exactly_once", "at_most_once"]
OnError: TypeAlias = Literal["stop", "drop"]

# Ids become names of folders: with a slash or a dot one could lead out of the folder of the queues.
ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class StepKind(Enum):
    """The kind of a step, which follows from its inputs and outputs."""

    SOURCE = "source"
    """Only an id: a queue that code outside the graph appends to."""
    SINK = "sink"
    JOIN = "join"
    JOIN_FORK = "join and fork"
    IMPERATIVE = "imperative"
    """Its handler reads and writes queues itself, outside of the exactly-once protocol."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a graph.

    `inputs` and `outputs` map the names that the handler uses to the ids of queues. A step with
    `inputs` waits for one message from each of them; one with `alts` takes the next message of any
    of them. An output that the handler leaves out gets no message, which is how a handler routes. If the
    handler raises, its messages go to the `errors` queue. Without such a queue `on_error` decides: "stop"
    ends this step until the graph is started again, "drop" logs the error and continues.
    """

    id: str
    handler: Handler | None = None
    inputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    alts: Mapping[str, str] = msgspec.field(default_factory=dict)
    outputs: Mapping[str, str] = msgspec.field(default_factory=dict)
    tailers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Queues that the handler reads itself. Their messages are not part of the delivery key."""
    appenders: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Queues that the handler writes itself. After a crash it may write a message again."""
    errors: str | None = None
    on_error: OnError = "stop"
    topics: Sequence[str] = ()
    """Process only messages with one of these topics; `types` is then ignored."""
    types: Sequence[str] = ()
    """Process only messages of one of these types."""
    strategy: Strategy = "exactly_once"
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def bindings(self) -> Mapping[str, str]:
        """The inputs or alts, by name."""
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
        """Every queue that this step uses. The queue of a source has the id of the source."""
        if self.kind is StepKind.SOURCE:
            return [self.id]
        bound = [*self.bindings.values(), *self.outputs.values(), *self.tailers.values(), *self.appenders.values()]
        return list(dict.fromkeys([*bound, *([self.errors] if self.errors else [])]))

    def describe(self) -> dict[str, Any]:
        """Return its configuration as plain values, for error messages."""
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
    """Return every problem of the steps of a graph."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for index, step in enumerate(steps):
        path = f"steps[{index}]"
        if step.id in seen:
            problems.append(Problem(f"{path}.id", f"another step has the id {step.id!r}", "use an id of its own"))
        seen.add(step.id)
        problems += [Problem(f"{path}.{name}", what, hint) for name, what, hint in _step_problems(step)]
    if errors is not None and not _fit(errors):
        problems.append(Problem("errors", f"{errors!r} cannot name a queue", _SPELLING))
    return problems


_SPELLING = "use letters, digits, - and _"


def _fit(id: object) -> bool:
    return isinstance(id, str) and 0 < len(id) <= 128 and ID_CHARACTERS.issuperset(id)


def _step_problems(step: Step) -> list[tuple[str, str, str | None]]:
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
    """Return the messages that pass the filters of the step, by name. The others are consumed too."""
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
    """What a handler gets besides its messages: the step and this delivery.

    `delivery_key` is the same on every attempt for the same messages, and different for all others. A handler
    with side effects uses it to make them idempotent.
    """

    id: str
    config: Mapping[str, Any]
    delivery_key: str
    strategy: Strategy
    errors: str | None
    system: Mapping[str, Any]
    """The `system` of the graph, for all its handlers: connections, clients and so on."""
    options: Mapping[str, Any]
    tailers: "Mapping[str, Tailer]" = MappingProxyType({})
    appenders: "Mapping[str, Queue]" = MappingProxyType({})


def error_message(step: Step, messages: Mapping[str, Message], error: Exception) -> Message:
    """Return the message for the error queue: the step, its messages, and the error."""
    return {
        "type": ERROR_TYPE,
        "step": step.describe(),
        "messages": dict(messages),
        "cause": {
            "class": type(error).__qualname__,
            "message": text_of(error),
            "trace": "".join(traceback.format_exception(error)),
        },
    }
