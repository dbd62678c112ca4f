"""Pipeline, Source, Processor, Destination, DeadLetters: how a user writes a pipeline down.

Nothing here raises for a mistake: every object keeps what is wrong with it in `problems`, and
`conduit_py.graph.compile_pipeline` reports all of them together before anything starts.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from conduit_py import sdk
from conduit_py.backoff import Recovery, Retry
from conduit_py.errors import Problem
from conduit_py.sdk import registry
from conduit_py.sdk.options import Options, Place, at, check_options, did_you_mean, place_of_call
from conduit_py.sdk.plugin import Plugin
from conduit_py.sdk.processor import Condition, FunctionProcessor

if TYPE_CHECKING:
    from conduit_py.dead_letter import DeadLetter

Id = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]
Delivery: TypeAlias = Literal["at_least_once", "at_most_once", "exactly_once"]
After: TypeAlias = str | Sequence[str] | None
DeadLetterCallable: TypeAlias = "Callable[[DeadLetter], Awaitable[None] | None]"
DeadLetterHandler: TypeAlias = "Literal['stop', 'drop'] | sdk.Destination[Any] | DeadLetterCallable"
ProcessorLike: TypeAlias = "Processor | sdk.Processor[Any] | Callable[..., Any]"


def _answers_at_once(when: Callable[..., Any]) -> Callable[..., Any]:
    # The coroutine that an async one returns would count as true.
    if inspect.iscoroutinefunction(when):
        raise ValueError("must answer at once: write a plain function, not an async one")
    return when


When = Annotated[Callable[..., Any], AfterValidator(_answers_at_once)]


class SourceSettings(Options):
    """How the runtime treats a source, whatever the connector."""

    id: Id
    batch_size: int = Field(default=256, ge=1, description="the most records that travel together")
    window: int = Field(default=32_768, ge=1, description="the most records read and not yet settled")


class Source:
    """A source in a pipeline: an id that outlives restarts, a connector, and processors for it alone."""

    def __init__(
        self,
        id: str,
        connector: sdk.Source[Any] | str,
        *,
        settings: Mapping[str, Any] | None = None,
        processors: Sequence[ProcessorLike] = (),
        batch_size: int = 256,
        window: int = 32_768,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        checked, problems = check_options(SourceSettings, dict(id=id, batch_size=batch_size, window=window), self.place)
        self.settings = checked if isinstance(checked, SourceSettings) else SourceSettings.model_construct(id=self.id)
        self.connector, more = _connector("source", sdk.Source, connector, settings, self.place)
        items, amiss = _listed("processors", processors, self.place)
        self.processors = [as_processor(item) for item in items]
        self.problems = problems + more + amiss

    @property
    def batch_size(self) -> int:
        return min(self.settings.batch_size, self.settings.window)

    @property
    def window(self) -> int:
        return self.settings.window


class DestinationSettings(Options):
    """How the runtime treats a destination, whatever the connector."""

    id: Id
    retry: Retry | None = None
    when: When | None = None


class Destination:
    """A destination in a pipeline. `when` sends it only the records for which it is true."""

    def __init__(
        self,
        id: str,
        connector: sdk.Destination[Any] | str,
        *,
        settings: Mapping[str, Any] | None = None,
        processors: Sequence[ProcessorLike] = (),
        retry: Retry | None = None,
        when: Condition | None = None,
        after: After = None,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        _, problems = check_options(DestinationSettings, dict(id=id, retry=retry, when=when), self.place)
        self.retry = retry or Retry(attempts=1)
        self.when = when
        self.after = _ids(after)
        self.connector, more = _connector("destination", sdk.Destination, connector, settings, self.place)
        items, amiss = _listed("processors", processors, self.place)
        self.processors = [as_processor(item) for item in items]
        self.problems = problems + more + amiss


class ProcessorSettings(Options):
    """How the runtime treats a processor, whatever it does."""

    id: Id
    workers: int = Field(default=1, ge=1, le=1000, description="how many records are processed at once, order kept")
    when: When | None = None
    retry: Retry | None = None


class Processor:
    """A processor in a pipeline. `when` lets the records for which it is false pass by untouched."""

    def __init__(
        self,
        id: str,
        processor: sdk.Processor[Any] | Callable[..., Any] | str,
        *,
        settings: Mapping[str, Any] | None = None,
        workers: int | None = None,
        when: Condition | None = None,
        retry: Retry | None = None,
        after: After = None,
        named: bool = True,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        self.named = named
        plugin, more = _processor(processor, settings, self.place)
        self.processor = plugin
        own = plugin if isinstance(plugin, FunctionProcessor) else None
        self.workers = workers if workers is not None else own.workers if own else 1
        self.when = when or (own.when if own else None)
        self.retry = retry or (own.retry if own else None) or Retry(attempts=1)
        self.after = _ids(after)
        values = dict(id=id, workers=self.workers, when=self.when, retry=self.retry)
        self.problems = check_options(ProcessorSettings, values, self.place)[1] + more


class DeadLetterSettings(Options):
    """When nacks become too many."""

    window_size: int = Field(default=0, ge=0, description="how many of the latest outcomes count; 0 counts none")
    window_nack_threshold: int = Field(default=0, ge=0, description="how many of those may be nacks")

    @model_validator(mode="after")
    def _can_trip(self) -> "DeadLetterSettings":
        if self.window_size and self.window_nack_threshold >= self.window_size:
            raise ValueError("window_nack_threshold must be below window_size, or it could never be exceeded")
        if self.window_nack_threshold and not self.window_size:
            raise ValueError("window_nack_threshold needs a window_size")
        return self


class DeadLetters:
    """What becomes of records that were refused.

    `"stop"` stops the pipeline at the first; `"drop"` logs and forgets; a destination connector keeps
    them; a callable is given each. Of the last `window_size` outcomes of a source at most
    `window_nack_threshold` may be nacks: one more stops the pipeline.
    """

    def __init__(
        self, handler: DeadLetterHandler = "stop", *, window_size: int = 0, window_nack_threshold: int = 0
    ) -> None:
        self.place = place_of_call()
        self.handler = handler
        values = dict(window_size=window_size, window_nack_threshold=window_nack_threshold)
        checked, self.problems = check_options(DeadLetterSettings, values, self.place)
        self.settings = checked if isinstance(checked, DeadLetterSettings) else DeadLetterSettings()
        if isinstance(handler, sdk.Destination):
            found = _problems_of(handler, "", self.place or (None, None))
            self.problems += [at(problem, "handler") for problem in found]
        elif handler not in ("stop", "drop") and not callable(handler):
            what = 'must be "stop", "drop", a destination connector or a callable'
            spot = self.place or (None, None)
            self.problems.append(Problem("handler", f"{what}, not {_said(handler)}", _spelling(handler), *spot))


class PipelineSettings(Options):
    """How a pipeline as a whole behaves."""

    id: Id
    description: str = Field(default="", max_length=8192)
    delivery: Delivery = "at_least_once"
    stop_seconds: float = Field(default=30.0, gt=0, description="how long a graceful stop may take")
    recovery: Recovery | None = None


class Pipeline:
    """Sources → processors → destinations, and what becomes of refused records.

    Unless `after` says otherwise, every source feeds the first processor, each processor the next, and
    the last one every destination.
    """

    def __init__(
        self,
        id: str,
        *,
        sources: Sequence[Source],
        destinations: Sequence[Destination],
        processors: Sequence[ProcessorLike] = (),
        dead_letters: DeadLetters | None = None,
        delivery: Delivery = "at_least_once",
        description: str = "",
        stop_seconds: float = 30.0,
        recovery: Recovery | None = None,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        values = dict(id=id, description=description, delivery=delivery, stop_seconds=stop_seconds, recovery=recovery)
        checked, self.problems = check_options(PipelineSettings, values, self.place)
        self.settings = (
            checked if isinstance(checked, PipelineSettings) else PipelineSettings.model_construct(id=self.id)
        )
        self.sources = self._of_type(Source, "sources", sources)
        self.processors = [as_processor(item) for item in self._listed("processors", processors)]
        self.destinations = self._of_type(Destination, "destinations", destinations)
        self.dead_letters = dead_letters if isinstance(dead_letters, DeadLetters) else DeadLetters()
        if dead_letters is not None and not isinstance(dead_letters, DeadLetters):
            hint = f"write DeadLetters({dead_letters!r})" if isinstance(dead_letters, str) else "write DeadLetters(…)"
            what = f"must be DeadLetters, not {_said(dead_letters)}"
            self.problems.append(Problem("dead_letters", what, hint, *(self.place or (None, None))))

    @property
    def delivery(self) -> Delivery:
        return self.settings.delivery

    def _listed(self, name: str, given: Any) -> list[Any]:
        items, problems = _listed(name, given, self.place)
        self.problems += problems
        return items

    def _of_type(self, kind: type[Any], name: str, given: Any) -> list[Any]:
        items = self._listed(name, given)
        for index, item in enumerate(items):
            if not isinstance(item, kind):
                given = type(item).__name__
                hint = f'write {kind.__name__}("an-id", …)'
                place = self.place or (None, None)
                self.problems.append(
                    Problem(f"{name}[{index}]", f"must be a {kind.__name__}, not {given}", hint, *place)
                )
        return [item for item in items if isinstance(item, kind)]


def as_processor(item: ProcessorLike) -> Processor:
    """What stands in a list of processors, as a Processor: bare ones are named after themselves."""
    if isinstance(item, Processor):
        return item
    name = item.name if isinstance(item, FunctionProcessor) else getattr(item, "__name__", type(item).__name__)
    return Processor(name.strip("<>"), item, named=False)


def _listed(name: str, given: Any, place: Place | None) -> tuple[list[Any], list[Problem]]:
    """What stands in a list. A thing by itself counts as a list of it, so that its own mistakes are found too."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given), []
    what = f"must be a list, not {_said(given)}"
    return [given], [Problem(name, what, f"write {name}=[…]", *(place or (None, None)))]


def _connector(
    kind: Literal["source", "destination"],
    base: type[Any],
    connector: object,
    settings: Mapping[str, Any] | None,
    place: Place | None,
) -> tuple[Any, list[Problem]]:
    spot = place or (None, None)
    if isinstance(connector, str):
        connector, problems = _by_name(kind, "connector", connector, settings, place)
        if problems:
            return None, problems
    elif settings is not None:
        return connector, [Problem("settings", "go with a connector's name; this one has its own options", None, *spot)]
    if not isinstance(connector, base):
        what = f"must be a {kind} connector, not {_said(connector)}"
        return None, [Problem("connector", what, f"connectors derive from conduit_py.sdk.{base.__name__}", *spot)]
    return connector, _problems_of(connector, "connector", spot)


def _problems_of(plugin: Plugin[Any], path: str, spot: tuple[str | None, int | None]) -> list[Problem]:
    if hasattr(plugin, "problems"):
        return list(plugin.problems)
    hint = "call super().__init__(**options), or declare options and leave __init__ out"
    return [Problem(path, f"{type(plugin).__qualname__}.__init__ does not pass its options on", hint, *spot)]


def _processor(
    item: object, settings: Mapping[str, Any] | None, place: Place | None
) -> tuple[sdk.Processor[Any] | None, list[Problem]]:
    spot = place or (None, None)
    if isinstance(item, str):
        item, problems = _by_name("processor", "processor", item, settings, place)
        if problems:
            return None, problems
    if isinstance(item, type):
        hint = f"write {item.__name__}(…) with its options"
        return None, [Problem("processor", f"is the class {item.__name__}, not a processor", hint, *spot)]
    if callable(item) and not isinstance(item, sdk.Processor):
        item = FunctionProcessor(item)
    if isinstance(item, sdk.Processor):
        return item, _problems_of(item, "processor", spot)
    return None, [Problem("processor", f"must be a function or a processor, not {_said(item)}", None, *spot)]


def _by_name(
    kind: registry.Kind, path: str, name: str, settings: Mapping[str, Any] | None, place: Place | None
) -> tuple[object, list[Problem]]:
    """The plugin with this name. One that is installed but cannot be imported raises: the definition is right."""
    try:
        return registry.find(kind, name)(**(settings or {})), []
    except registry.UnknownPlugin as unknown:
        return None, [Problem(path, unknown.message, unknown.suggestion, *(place or (None, None)))]


def _said(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    for kind, name in ((sdk.Source, "source"), (sdk.Destination, "destination")):
        if isinstance(value, kind):
            return f"a {name} connector"
    # All that most objects say of themselves is their address.
    return repr(value) if type(value).__repr__ is not object.__repr__ else f"a {type(value).__qualname__}"


def _spelling(handler: object) -> str | None:
    return did_you_mean(handler, ["stop", "drop"]) if isinstance(handler, str) else None


def _ids(after: After) -> list[str] | None:
    if after is None:
        return None
    return [after] if isinstance(after, str) else list(after)
