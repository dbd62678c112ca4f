"""Checks of a pipeline beyond its shape: guarantee, files, types of payloads, processors that defer, Spark."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Union

import networkx as nx

from conduit_py.errors import Problem
from conduit_py.graph.node import Graph, Node, deferring_processors
from conduit_py.payload_fit import describe_type, misfits, payload_form, union_members
from conduit_py.pipeline import Destination, Pipeline, Processor, Source
from conduit_py.sdk.destination import StagedDestination, TransactionalDestination, WriteGuarantee
from conduit_py.sdk.plugin import Connector, Options
from conduit_py.sdk.processor import FunctionProcessor, Unchanged
from conduit_py.sdk.registry import connector_label
from conduit_py.sdk.source import SharedSource

_OR_AT_LEAST_ONCE = 'or use delivery="at_least_once"'
_OR_EXACTLY_ONCE = 'or use delivery="exactly_once"'
_ALLOWED = (
    "use one that stages (file, journal), one that keeps the checkpoint with its data (sqlite, postgres) or one that "
    f"is idempotent by delivery key, {_OR_AT_LEAST_ONCE}"
)


def delivery_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield everything in a pipeline that its delivery guarantee does not allow."""
    if pipeline.delivery == "exactly_once":
        yield from _exactly_once_problems(pipeline)
    else:
        for name, value in (("transaction", pipeline.settings.transaction), ("outbox", pipeline.outbox or None)):
            if value is not None:
                what = "applies only to an exactly-once pipeline"
                yield _problem(pipeline, name, what, f"remove it, {_OR_EXACTLY_ONCE}")
    if pipeline.delivery == "at_most_once" and not pipeline.dead_letters.policy.discards:
        yield _problem(pipeline, "dead_letters", "at_most_once drops refused records", 'use DeadLetters("drop")')
    yield from _state_problems(pipeline)
    yield from _atomic_problems(pipeline)
    yield from _schedule_problems(pipeline)


def _atomic_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for source in pipeline.sources:
        path = f"sources.{source.id}.atomic"
        if not source.settings.atomic:
            continue
        if pipeline.delivery != "exactly_once":
            what = "only an exactly-once pipeline commits the records of a group together"
            yield _problem(source, path, what, 'use delivery="exactly_once", or remove it')
        if source.connector is not None and not source.connector.has_groups:
            what = f"{connector_label(source.connector)} does not tell which records belong together"
            yield _problem(source, path, what, "remove it")


def _schedule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    schedule = pipeline.schedule
    if schedule is None:
        return
    for source in pipeline.sources:
        path, connector = f"sources.{source.id}.schedule", source.connector
        if source.settings.timetable != schedule:
            what = "all sources of a pipeline have one schedule, because they are opened and closed together"
            hint = f'give it schedule="{schedule.expression}" in {schedule.timezone} too, or make it another pipeline'
            yield _problem(source, path, what, hint)
        elif connector is not None and not source.problems and connector.endless:
            what = f"{connector_label(connector)} waits for more at its end, so no second run would ever begin"
            yield _problem(source, path, what, "let it end by its options, or remove the schedule")


def _exactly_once_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for source in pipeline.sources:
        if source.connector is not None and not source.connector.resumable:
            what = f"{connector_label(source.connector)} cannot resume from a position, which exactly_once requires"
            hint = f"write its records to a journal first and read that, {_OR_AT_LEAST_ONCE}"
            yield _problem(source, f"sources.{source.id}", what, hint)
    mixing = {each.id: of for each in pipeline.sources if (of := each.connector) is not None and not of.repeatable}
    for destination in pipeline.destinations:
        if destination.connector is not None:
            yield from _destination_problems(destination)
            by_keys = destination.connector.guarantee is WriteGuarantee.IDEMPOTENT
            for id, connector in mixing.items() if by_keys else ():
                what = f"recognises repeated records by positions, which differ each time that {id} reads them"
                hint = f"{connector.repeatable_hint}, or use a destination that is transactional or staged"
                yield _problem(destination, f"destinations.{destination.id}", what, hint)
    yield from _claim_problems(pipeline)
    yield from _dead_letter_problems(pipeline)


def _claim_problems(pipeline: Pipeline) -> Iterator[Problem]:
    letters = pipeline.dead_letters
    writers = [(f"destinations.{each.id}", each.connector, each.place) for each in pipeline.destinations]
    writers += [("dead_letters.handler", letters.policy.connector, letters.place)]
    claimed: dict[str, str] = {}
    for path, connector, place in writers:
        # A connector with a problem has no options to ask, and one without our `__init__` has no list of them.
        if not isinstance(connector, StagedDestination) or getattr(connector, "problems", True) or not connector.claims:
            continue
        first = claimed.setdefault(connector.claims, path)
        if first == path:
            continue
        harm, hint = "each would stop the other", "give each of them its own"
        if not isinstance(connector, TransactionalDestination):
            harm = "each would take what the other writes for its own, and records would be lost"
            hint = "let one destination write there, with the inputs of both in `after`, or give each its own"
        what = f"claims {connector.claims}, as {first.removeprefix('destinations.')} does: {harm}"
        yield Problem(path, what, hint, *(place or (None, None)))


def _destination_problems(destination: Destination) -> Iterator[Problem]:
    path, connector = f"destinations.{destination.id}", destination.connector
    if connector.guarantee is WriteGuarantee.AT_LEAST_ONCE:
        label = connector_label(connector)
        what = f"{label} would write records again after a crash, which exactly_once does not allow"
        yield _problem(destination, path, what, _ALLOWED)
    # Writing a part of a transaction again would stage it twice.
    elif connector.guarantee is not WriteGuarantee.IDEMPOTENT and destination.retry.attempts > 1:
        what = "a write that fails ends the transaction, which is retried as a whole"
        yield _problem(destination, f"{path}.retry", what, "remove it; recovery=Recovery(…) of the pipeline retries")
    if destination.batch_seconds:
        hint = "remove it; transaction=TransactionLimits(min_seconds=…) of the pipeline is the pace of commits"
        yield _problem(destination, f"{path}.batch_seconds", "a transaction would wait for records that wait", hint)


def _dead_letter_problems(pipeline: Pipeline) -> Iterator[Problem]:
    policy = pipeline.dead_letters.policy
    if policy.repeats_after_crash is not None:
        instead = _ALLOWED if policy.connector is not None else f'use "drop" or a destination: {_ALLOWED}'
        what = f"{policy.repeats_after_crash}, which exactly_once does not allow"
        yield _problem(pipeline, "dead_letters.handler", what, instead)


def _state_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for path, processor in _processors(pipeline):
        if processor.processor is None or not processor.processor.stateful:
            continue
        if pipeline.delivery != "exactly_once":
            what = "keeps state, which is correct after a crash only if it commits with the records"
            yield _problem(processor, path, what, 'use delivery="exactly_once"')
        if processor.workers > 1:
            what = f"keeps state, which {processor.workers} workers would change in an arbitrary order"
            yield _problem(processor, f"{path}.workers", what, "use one worker")


def _processors(pipeline: Pipeline) -> Iterator[tuple[str, Processor]]:
    """Yield every processor of a pipeline with its path."""
    yield from ((f"processors.{each.id}", each) for each in pipeline.processors)
    for kind, ends in (("sources", pipeline.sources), ("destinations", pipeline.destinations)):
        for end in ends:
            yield from ((f"{kind}.{end.id}.processors.{each.id}", each) for each in end.processors)


def _problem(at: Pipeline | Source | Destination | Processor, path: str, message: str, suggestion: str) -> Problem:
    return Problem(path, message, suggestion, *(at.place or (None, None)))


def file_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield every connector that writes a file which a source reads: the pipeline would read its own output."""
    readers = {_file_identity(source.connector): source.id for source in pipeline.sources}
    letters = pipeline.dead_letters
    writers = [(f"destinations.{each.id}", each.connector, each.place) for each in pipeline.destinations]
    writers += [("dead_letters", letters.policy.connector, letters.place)]
    writers += [(f"outbox.{target}", connector, pipeline.place) for target, connector in pipeline.outbox.items()]
    for path, connector, place in writers:
        identity = _file_identity(connector)
        if identity is not None and identity in readers:
            what = f"writes {connector.data_file()}, which the source {readers[identity]!r} reads"
            yield Problem(path, what, "write to another file", *(place or (None, None)))


def _file_identity(connector: Connector[Options] | None) -> tuple[int, int] | str | None:
    """Return what all names of a file have in common, links included; None for a connector without a file."""
    # A connector with a problem has no options to ask.
    if connector is None or getattr(connector, "problems", True) or (path := connector.data_file()) is None:
        return None
    try:
        found = path.stat()
        return found.st_dev, found.st_ino
    except OSError:
        return os.path.realpath(path)
    except ValueError:
        return None


class _Given(NamedTuple):
    """The type of payloads on an edge, and the node that gave them that type."""

    node: Node
    type: Any


def flow_problems(pipeline: Pipeline, nodes: Sequence[Node]) -> Iterator[Problem]:
    """Yield every node that must refuse all records of another one, because it takes payloads of another type.

    `nodes` is in topological order. Each origin is followed on its own: one that fits does not excuse another. A node
    with a condition takes everything, because the condition may choose by the type.
    """
    leaving: dict[str, dict[str, _Given]] = {}
    for node in nodes:
        arriving = {origin: given for id in node.inputs for origin, given in leaving[id].items()}
        taken = _takes(node)
        refused = {origin for origin, given in arriving.items() if misfits(given.type, taken) is not None}
        yield from _misfit_problems(node, [arriving[origin] for origin in arriving if origin in refused])
        leaving[node.id] = _leaving(node, {origin: arriving[origin] for origin in arriving if origin not in refused})
    letters = pipeline.dead_letters
    handler = None if letters.problems else letters.policy.connector
    if handler is not None and misfits(dict, handler.takes) is not None:
        what = f"takes {describe_type(handler.takes)}, but dead letters are structured data"
        hint = 'use a destination that writes them whole, such as a file with format="json"'
        yield Problem("dead_letters.handler", what, hint, *(letters.place or (None, None)))


def _takes(node: Node) -> Any:
    declared = node.declared
    if isinstance(declared, Source) or declared.problems or declared.when is not None:
        return Any
    plugin = declared.processor if isinstance(declared, Processor) else declared.connector
    return plugin.takes if plugin is not None else Any


def _leaving(node: Node, arriving: dict[str, _Given]) -> dict[str, _Given]:
    declared = node.declared
    if isinstance(declared, Destination):
        return {}
    plugin = declared.processor if isinstance(declared, Processor) else declared.connector
    gives = Any if plugin is None or declared.problems else plugin.gives
    if gives is Unchanged:
        return arriving
    if isinstance(declared, Processor) and declared.when is not None:
        # Records for which the condition is false pass unchanged.
        return {origin: _Given(node, Union[given.type, gives]) for origin, given in arriving.items()}  # noqa: UP007
    return {node.id: _Given(node, gives)}


def _misfit_problems(node: Node, refused: Sequence[_Given]) -> Iterator[Problem]:
    """One problem for each type that does not fit: a hundred sources may give the same."""
    plugin = node.declared.processor if isinstance(node.declared, Processor) else None
    # Of the function, where there is one: its hints have to change, not the list of processors.
    place = (plugin.place if isinstance(plugin, FunctionProcessor) else node.declared.place) or (None, None)
    taken = _takes(node)
    by_type: dict[str, list[_Given]] = {}
    for given in refused:
        by_type.setdefault(str(given.type), []).append(given)
    for same in by_type.values():
        first, more = same[0], len(same) - 1
        giver = f"the {first.node.kind} {first.node.id!r}" + (f" (and {more} more)" if more else "")
        reasons = "; ".join((misfits(first.type, taken) or [])[:_REASONS_MAX])
        what = f"takes {describe_type(taken)}, but {giver} gives {describe_type(first.type)}"
        yield Problem(
            f"{node.kind}s.{node.id}",
            f"{what}: {reasons}" if reasons else what,
            _conversion(first, node, taken),
            *place,
        )


_REASONS_MAX = 3


def _conversion(given: _Given, node: Node, taken: Any) -> str:
    forms = {payload_form(each) for each in union_members(given.type)}
    if "structured" not in forms and payload_form(union_members(taken)[0]) == "structured":
        hint = 'put the processor "json.decode" with field=".Payload.After" before it'
        connector = given.node.declared.connector if isinstance(given.node.declared, Source) else None
        reads_json = connector is not None and "format" in connector.options_model.model_fields
        return f'read it with format="json", or {hint}' if reads_json else hint
    if "raw" not in forms and taken is bytes:
        return 'put the processor "json.encode" with field=".Payload.After" before it'
    names = describe_type(taken), describe_type(given.type)
    return f"return {names[0]} in {given.node.id!r}, take {names[1]} in {node.id!r}, or convert between them"


def defer_problems(graph: Graph) -> Iterator[Problem]:
    """What makes it unsound that a processor defers records, each by name.

    A commit has the positions of everything before the deferred record and of nothing behind it. So nothing that
    commits may have seen a record that can still be deferred: no processor with state, and no other branch.
    """
    for id in deferring_processors(graph):
        node = graph.nodes[id]
        yield from _form_problems(node)
        yield from _place_problems(graph, node)


def _form_problems(node: Node) -> Iterator[Problem]:
    declared = _processor(node)
    assert declared.processor is not None
    if not declared.processor.stateful:
        what = "defers, so it needs state, to ask whether a record is the first of its transaction"
        yield _problem(node.declared, f"processors.{node.id}", what, "write state=True too")
    if declared.retry.attempts > 1:
        what = "defers, so it cannot have retries: other records would overtake the one that is retried"
        hint = "remove the retry; a transaction that fails is retried as a whole"
        yield _problem(node.declared, f"processors.{node.id}", what, hint)


def _place_problems(graph: Graph, node: Node) -> Iterator[Problem]:
    before = [graph.nodes[id] for id in sorted(nx.ancestors(graph.digraph, node.id))]
    votes = graph.votes(node.id)
    for each in before:
        if each.kind == "processor" and (plugin := _processor(each).processor) is not None and plugin.stateful:
            what = f"defers, but {each.id}, which is before it, would have counted the deferred record in its state"
            yield _problem(
                node.declared,
                f"processors.{node.id}",
                what,
                f"put {node.id} before {each.id}, or do the work of both in one processor",
            )
        if isinstance(each.declared, Source) and each.declared.settings.atomic:
            what = f"defers, but {each.id} is atomic: a deferred record would divide its group"
            yield _problem(node.declared, f"processors.{node.id}", what, f"remove atomic of {each.id}, or do not defer")
        if each.kind == "source" and graph.votes(each.id) != votes:
            what = f"defers, but records of {each.id} also take another branch, where they would be written"
            yield _problem(node.declared, f"processors.{node.id}", what, "put it before the branches split")


def _processor(node: Node) -> Processor:
    assert isinstance(node.declared, Processor)
    return node.declared


def spark_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Everything in a pipeline that cannot run on Spark, each with its reason."""
    for source in pipeline.sources:
        if isinstance(source.connector, SharedSource):
            what = "shares its work with other processes by leases, which tasks of Spark do not hold"
            yield _problem(source, f"sources.{source.id}", what, 'run it on the engine "trio"')
        if source.connector is not None and source.connector.follows_others:
            what = "ends with the other sources, whose records tasks of Spark read"
            yield _problem(source, f"sources.{source.id}", what, 'run it on the engine "trio", or remove it')
        if source.settings.atomic:
            what = "tasks of Spark divide the records of a group"
            yield _problem(source, f"sources.{source.id}.atomic", what, 'run it on the engine "trio", or remove it')
        if source.settings.schedule is not None:
            what = "a Spark is not kept, or started, for runs on a schedule"
            hint = 'run it on the engine "trio", or start it with cron and `conduit-py run --once`'
            yield _problem(source, f"sources.{source.id}.schedule", what, hint)
        if source.settings.rate is not None:
            yield _unlimited(source, f"sources.{source.id}.rate")
    for destination in pipeline.destinations:
        for name in ("rate", "batch_size", "batch_bytes", "batch_seconds"):
            if getattr(destination, name) is not None:
                yield _unlimited(destination, f"destinations.{destination.id}.{name}")
    waiting = [(path, each) for path, each in _processors(pipeline) if each.batch_seconds is not None]
    yield from (_unlimited(each, f"{path}.batch_seconds") for path, each in waiting)


def _unlimited(declared: Source | Destination | Processor, path: str) -> Problem:
    what = "is not kept on Spark, whose tasks read and prepare records side by side"
    return _problem(declared, path, what, 'run it on the engine "trio", or remove it')
