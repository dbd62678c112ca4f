"""Pipeline, Source, Processor, Destination, DeadLetters: the definition of a pipeline.

Nothing here raises for a wrong value. Every object collects its `problems`, and
`conduit_py.graph.compile_pipeline` reports all of them together before anything starts.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, TypeAlias, TypeVar

from conduit_py import defaults, sdk
from conduit_py.backoff import Recovery, Retry
from conduit_py.batch import Batch
from conduit_py.dead_letter_policy import DeadLetters as DeadLetters
from conduit_py.errors import Problem
from conduit_py.pipeline_settings import (
    Delivery,
    DestinationSettings,
    Engine,
    PipelineSettings,
    ProcessorSettings,
    RateLimit,
    SourceSettings,
    Spark,
    TransactionLimits,
    spark_of,
)
from conduit_py.resolve import (
    as_list,
    describe_value,
    resolve_connector,
    resolve_outbox,
    resolve_processor,
)
from conduit_py.schedule import Schedule
from conduit_py.sdk.plugin import check_options, collect_keyword_problems, place_of_call
from conduit_py.sdk.processor import Condition, FunctionProcessor, RecordFunction, Where

After: TypeAlias = str | Sequence[str] | None
ProcessorLike: TypeAlias = "Processor | sdk.Processor[sdk.Options] | RecordFunction"


class Source:
    """A source in a pipeline: its id, under which positions are stored, its connector and its own processors."""

    @collect_keyword_problems
    def __init__(
        self,
        id: str,
        connector: sdk.SourceConnector[sdk.Options] | str,
        *,
        settings: Mapping[str, object] | None = None,
        processors: Sequence[ProcessorLike] = (),
        batch_size: int = defaults.BATCH_SIZE,
        window: int = defaults.WINDOW,
        atomic: bool = False,
        rate: RateLimit | None = None,
        schedule: str | None = None,
        timezone: str | None = None,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        given = dict(
            id=id, batch_size=batch_size, window=window, atomic=atomic, rate=rate, schedule=schedule, timezone=timezone
        )
        checked, problems = check_options(SourceSettings, given, self.place)
        # Defaults stand in for wrong settings: the rest is checked and reported too.
        self.settings = checked if isinstance(checked, SourceSettings) else SourceSettings.model_construct(id=self.id)
        self.connector, more = resolve_connector("source", sdk.SourceConnector, connector, settings, self.place)
        items, found = as_list("processors", processors, self.place)
        self.processors = [as_processor(item) for item in items]
        self.problems = problems + more + found

    @property
    def batch_size(self) -> int:
        # A batch larger than the window would wait for room that can never come.
        return min(self.settings.batch_size, self.settings.window)

    @property
    def window(self) -> int:
        return self.settings.window


class Destination:
    """A destination in a pipeline. `when` sends it, and its own processors, only the records for which it is true."""

    write_adapter: "WriteAdapter | None" = None
    """Replaces the direct call of `write`, if an engine did part of the work before the batch arrived."""

    @collect_keyword_problems
    def __init__(
        self,
        id: str,
        connector: sdk.DestinationConnector[sdk.Options] | str,
        *,
        settings: Mapping[str, object] | None = None,
        processors: Sequence[ProcessorLike] = (),
        retry: Retry | None = None,
        batch_size: int | None = None,
        batch_bytes: int | None = None,
        batch_seconds: float | None = None,
        rate: RateLimit | None = None,
        when: Condition | str | None = None,
        after: After = None,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        given = dict(
            id=id,
            retry=retry,
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
            rate=rate,
            when=when,
        )
        checked, problems = check_options(DestinationSettings, given, self.place)
        limits = (batch_size, batch_bytes, batch_seconds, rate) if checked is not None else (None, None, None, None)
        self.batch_size, self.batch_bytes, self.batch_seconds, self.rate = limits
        self.retry = retry or Retry(attempts=1)
        self.when: Condition | None = checked.when if isinstance(checked, DestinationSettings) else None
        self.after = _ids(after)
        self.connector, more = resolve_connector(
            "destination", sdk.DestinationConnector, connector, settings, self.place
        )
        items, found = as_list("processors", processors, self.place)
        self.processors = [as_processor(item) for item in items]
        self.problems = problems + more + found


class WriteAdapter(Protocol):
    """Decides for each batch if `when` must still be evaluated, and which method writes it."""

    whole: bool
    """True if records arrive in files or batches that are complete, so that no flush has to wait for more of them."""

    def asks_when(self, batch: Batch) -> bool:
        """Return True if `when` must still be evaluated for the records of this batch."""

    def bind(self, call: Callable[..., Awaitable[Any]]) -> Callable[[Batch], Awaitable[Any]]:
        """Return what writes the batches of a run. `call(name, *arguments)` calls the connector of that run.

        It returns what `write` would. If it raises RecordRefused, every record of the batch is refused.
        """


class Processor:
    """A processor in a pipeline. Records for which `when` is false pass unchanged; with `asyncio` it runs there.

    With `where="process"` each of its workers is a process, for functions that compute. With `batch_seconds` records
    wait for others so long, until there are `batch_size` of them: a processor that takes batches gets larger ones. Of a
    state that takes more than `state_cache_bytes`, the keys used last are in memory, and the others in the store.
    """

    @collect_keyword_problems
    def __init__(
        self,
        id: str,
        processor: sdk.Processor[sdk.Options] | RecordFunction | str,
        *,
        settings: Mapping[str, object] | None = None,
        workers: int | None = None,
        where: Where | None = None,
        batch_size: int | None = None,
        batch_seconds: float | None = None,
        when: Condition | str | None = None,
        retry: Retry | None = None,
        asyncio: bool = False,
        state_cache_bytes: int = defaults.STATE_CACHE_BYTES,
        after: After = None,
        named: bool = True,
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        self.named = named
        self.processor, more = resolve_processor(processor, settings, self.place, asyncio=asyncio)
        own = self.processor if isinstance(self.processor, FunctionProcessor) else None
        self.workers = workers if workers is not None else own.workers if own else 1
        self.where: Where = where if where is not None else own.where if own else "thread"
        chosen = when or (own.when if own else None)
        self.retry = retry or (own.retry if own else None) or Retry(attempts=1)
        self.batch_size, self.batch_seconds = batch_size, batch_seconds
        self.after = _ids(after)
        self.state_cache_bytes = state_cache_bytes
        values = dict(
            id=id,
            workers=self.workers,
            where=self.where,
            batch_size=batch_size,
            batch_seconds=batch_seconds,
            when=chosen,
            retry=self.retry,
            state_cache_bytes=state_cache_bytes,
        )
        checked, problems = check_options(ProcessorSettings, values, self.place)
        self.when: Condition | None = checked.when if isinstance(checked, ProcessorSettings) else None
        self.problems = problems + more

    @property
    def files(self) -> set[str]:
        """The user's files that declare it and its function."""
        places = (self.place, getattr(self.processor, "place", None))
        return {place.file for place in places if place is not None}


class Pipeline:
    """Sources → processors → destinations, and what happens to refused records.

    `sources` and `destinations` are lists, or mappings from id to connector. Without `after`, every source feeds
    the first processor, each processor the next, and the last one every destination. `engine` is "trio" for this
    machine, "spark", or `Spark(…)` for a certain Spark. `outbox` has a connector for every target to which
    processors of an exactly-once pipeline publish.
    """

    @collect_keyword_problems
    def __init__(
        self,
        id: str,
        *,
        sources: Sequence[Source] | Mapping[str, sdk.SourceConnector[sdk.Options]],
        destinations: Sequence[Destination] | Mapping[str, sdk.DestinationConnector[sdk.Options]],
        processors: Sequence[ProcessorLike] = (),
        dead_letters: DeadLetters | None = None,
        delivery: Delivery = "at_least_once",
        description: str = "",
        stop_seconds: float = defaults.STOP_SECONDS,
        recovery: Recovery | None = None,
        transaction: TransactionLimits | None = None,
        outbox: Mapping[str, sdk.DestinationConnector[sdk.Options]] | None = None,
        engine: Engine = "trio",
    ) -> None:
        self.place = place_of_call()
        self.id = str(id)
        values = dict(
            id=id,
            description=description,
            delivery=delivery,
            stop_seconds=stop_seconds,
            recovery=recovery,
            transaction=transaction,
            engine=engine,
        )
        checked, self.problems = check_options(PipelineSettings, values, self.place)
        self.settings = (
            checked if isinstance(checked, PipelineSettings) else PipelineSettings.model_construct(id=self.id)
        )
        self.sources: list[Source] = self._of_type(Source, "sources", sources or ())
        self.processors = [as_processor(item) for item in self._listed("processors", processors)]
        self.destinations: list[Destination] = self._of_type(Destination, "destinations", destinations or ())
        self.dead_letters = dead_letters if isinstance(dead_letters, DeadLetters) else DeadLetters()
        self.outbox, found = resolve_outbox(outbox, self.place)
        self.problems += found
        if dead_letters is not None and not isinstance(dead_letters, DeadLetters):
            hint = f"write DeadLetters({dead_letters!r})" if isinstance(dead_letters, str) else "write DeadLetters(…)"
            what = f"must be DeadLetters, not {describe_value(dead_letters)}"
            self.problems.append(Problem("dead_letters", what, hint, *(self.place or (None, None))))

    @property
    def delivery(self) -> Delivery:
        return self.settings.delivery

    @property
    def schedule(self) -> Schedule | None:
        """When its sources are read again, which is the same for all of them; None if they are read once."""
        return next((found for each in self.sources if (found := each.settings.timetable) is not None), None)

    @property
    def ends(self) -> list[Source | Destination]:
        """All nodes that have a connector."""
        return [*self.sources, *self.destinations]

    @property
    def spark(self) -> Spark | None:
        """The Spark that it runs on, or None."""
        return spark_of(self.settings.engine)

    def _listed(self, name: str, given: Any) -> list[Any]:
        items, problems = as_list(name, given, self.place)
        self.problems += problems
        return items

    def _of_type(self, kind: type[Any], name: str, given: Any) -> list[Any]:
        if isinstance(given, Mapping):
            return [self._from_mapping(kind, name, id, connector) for id, connector in given.items()]
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

    def _from_mapping(self, kind: type[Any], name: str, id: str, connector: Any) -> Any:
        if not isinstance(connector, kind):
            return kind(id, connector)
        hint = f"write the connector alone, or a list: {name}=[{kind.__name__}(…)]"
        what = f"is a {kind.__name__} with an id of its own; here the key is the id"
        self.problems.append(Problem(f"{name}.{id}", what, hint, *(self.place or (None, None))))
        return connector


def as_processor(item: ProcessorLike) -> Processor:
    """Return an item of a list of processors as a Processor. A bare function or plugin gets its own name as id."""
    if isinstance(item, Processor):
        return item
    name = item.name if isinstance(item, FunctionProcessor) else getattr(item, "__name__", type(item).__name__)
    return Processor(name.strip("<>"), item, named=False)  # a lambda is called <lambda>, which is not a valid id


Declared = TypeVar("Declared", "Source", "Processor", "Destination", "DeadLetters", "Pipeline")


def derive(declared: Declared, **changes: object) -> Declared:
    """Return a copy of a declaration with other values of some attributes, as an engine runs it."""
    assert all(hasattr(declared, name) for name in changes), f"{changes.keys()} of {type(declared).__name__}"
    # Not through the constructor, which would check the values again and note our line as the user's.
    derived = copy(declared)
    vars(derived).update(changes)
    return derived


def without_schedule(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline as it is for one run, which begins at once."""
    unscheduled = {"schedule": None, "timezone": None}
    return derive(
        pipeline,
        sources=[derive(each, settings=each.settings.model_copy(update=unscheduled)) for each in pipeline.sources],
    )


def _ids(after: After) -> list[str] | None:
    if after is None:
        return None
    return [after] if isinstance(after, str) else list(after)
