"""Wiring: builds the tasks of a run from a graph, connected by bounded channels."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import trio

from conduit_py import defaults
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.graph.node import Graph, Node, deferring_processors, sources_above
from conduit_py.inspect.tap_point import Taps
from conduit_py.pipeline import Destination, Processor, Source
from conduit_py.sdk.destination import AckMode
from conduit_py.sdk.endpoint import EndpointSource
from conduit_py.sdk.plugin import Options, Plugin
from conduit_py.sdk.source import SharedSource, SourceConnector
from conduit_py.sdk.state import State
from conduit_py.store.store import Store
from conduit_py.stream.ack_reader import AckReader
from conduit_py.stream.commit import CommitStrategy, NodeContext, RunParts, Task
from conduit_py.stream.dead_letters import new_handler
from conduit_py.stream.fan_out import FanIn, FanOut, run_collecting, run_deferring, run_processors
from conduit_py.stream.held_batches import HeldBatches
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import LagWatch, Meter, StateGauge
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.stream.processor_node import ProcessorNode
from conduit_py.stream.reader import Dispatcher, ReadBuffer, Reader
from conduit_py.stream.replay import REPLAY_WINDOW, Entry, Replay, ReplayEntry
from conduit_py.stream.settler import NackWindow, Settler
from conduit_py.stream.signal import Signal
from conduit_py.stream.source_calls import ShardTracker, SnapshotRequests, source_callers
from conduit_py.stream.writer import Writer


class Instruments:
    """Makes the parts that an observer of a run may replace by its own, so that others pay nothing for it."""

    def new_ledger(self, *args: Any, **settings: Any) -> Ledger:
        return Ledger(*args, **settings)

    def new_buffer(self, source: str, *args: Any, **settings: Any) -> ReadBuffer:
        return ReadBuffer(*args, **settings)

    def new_processor(self, *args: Any) -> ProcessorNode:
        return ProcessorNode(*args)

    def new_writer_calls(self, node: str, connector: Plugin[Any]) -> PluginCaller:
        return PluginCaller(node, connector)

    def observe_transaction(self, sealed: Any) -> AbstractContextManager[object]:
        """Return a block in which a transaction is committed."""
        return nullcontext()

    def tasks(self) -> list[Task]:
        return []


INSTRUMENTS: Final = ContextVar[Callable[[str], Instruments]]("INSTRUMENTS", default=lambda pipeline: Instruments())
"""Makes the instruments of each run of a pipeline. Set before the tasks of pipelines begin, which inherit it."""


class Wiring:
    """All parts of a run, made and connected, but not yet opened or started.

    A node is a task only where that adds concurrency: every source has a reader and a dispatcher, every destination
    a writer (and an ack reader), and adjacent processors share one task. The commit strategy adds the tasks that
    make progress durable.
    """

    def __init__(self, graph: Graph, store: Store, commit: CommitStrategy, rng: random.Random, taps: Taps) -> None:
        self._graph = graph
        self._store = store
        self._commit = commit
        self._rng = rng
        self._taps = taps
        self._instruments = INSTRUMENTS.get()(graph.pipeline.id)
        self.meters: dict[str, Meter] = {node.id: Meter(node.id, node.kind) for node in graph.nodes.values()}
        self.meters[DEAD_LETTERS] = Meter(DEAD_LETTERS, "dead_letters")
        self.ledgers: dict[str, Ledger] = {}
        self.processors: dict[str, ProcessorNode] = {}
        self.readers: dict[str, Reader] = {}
        self.sources: dict[str, PluginCaller] = {}
        self.endpoints: dict[str, EndpointSource[Options]] = {}
        self.snapshot_requests: dict[str, SnapshotRequests] = {}
        """By node, the requests to the sources that take any."""
        self.destinations: dict[str, PluginCaller] = {}
        self.callers: list[PluginCaller] = []
        """Every caller of the run, to be closed at its end, because each may have a thread."""
        self.outbox = {
            target: self._caller(f"outbox:{target}", connector.fresh())
            for target, connector in graph.pipeline.outbox.items()
        }
        self.lag_watches: list[LagWatch] = []
        policy, letters_meter = graph.pipeline.dead_letters.policy, self.meters[DEAD_LETTERS]
        self.dead_letters = new_handler(policy, DEAD_LETTERS, graph.pipeline.id, letters_meter, store.letters)
        self.replay: Replay | None = None
        self._scopes: dict[str, str] = {}
        self._states: dict[str, State] = {}
        self._read_buffers: dict[str, ReadBuffer] = {}
        self.settlers: dict[str, Settler] = {}
        self._dispatchers: list[Dispatcher] = []
        self._leaders: list[Ledger] = []
        """The ledgers of the sources that do not follow others."""
        self._deferrals = {node: commit.new_deferral(node, graph.votes(node)) for node in deferring_processors(graph)}
        self._fan_ins = {
            node.id: FanIn(commit.channel_size) for node in graph.nodes.values() if self._begins_task(node)
        }
        self.tasks: list[Task] = self._instruments.tasks()
        self._make_nodes()
        self.tasks += commit.enlist(self._parts())

    def _make_nodes(self) -> None:
        nodes = self._graph.nodes.values()
        for node in nodes:
            # Processors first: sources and destinations are connected to them.
            if isinstance(node.declared, Processor):
                self._make_processor(node, node.declared)
        for node in nodes:
            if isinstance(node.declared, Source):
                if _is_read(node):
                    self._add_source(node, node.declared)
            elif isinstance(node.declared, Destination):
                self._add_destination(node, node.declared)
            elif node.id in self._fan_ins:
                self._add_processors(node)
        if self._graph.pipeline.dead_letters.policy.keeps:
            self._add_replay()
        for fan_in in self._fan_ins.values():
            fan_in.seal()

    def _parts(self) -> RunParts:
        return RunParts(
            self.settlers,
            self.ledgers,
            self._read_buffers,
            self.meters,
            self._states,
            self.destinations,
            self.outbox,
            self.dead_letters,
            self.replay,
            self._instruments.observe_transaction,
        )

    def refresh_gauges(self) -> None:
        """Compute the gauges of the meters, which are not updated per batch: queued, in flight, oldest, stalled."""
        now = trio.current_time()
        for id, fan_in in self._fan_ins.items():
            self.meters[id].queued = fan_in.queued
        for id, state in self._states.items():
            if self._graph.nodes[id].stateful:
                reads = 0 if state.evicted is None else state.evicted.reads
                gauge = StateGauge(len(state), state.size, state.watermark, state.cached, reads)
                self.meters[id].state = gauge
        for id, ledger in self.ledgers.items():
            meter, read_at = self.meters[id], ledger.oldest_read_at
            meter.in_flight = ledger.in_flight
            meter.oldest_seconds = 0.0 if read_at is None else now - read_at
            meter.stalled_seconds = 0.0 if read_at is None else now - max(read_at, meter.settled_at)

    def _begins_task(self, node: Node) -> bool:
        if node.kind == "source":
            return False
        if node.id in self._deferrals:
            return True  # so that all its records come through one channel
        if node.collects:
            return True
        joined = len(node.inputs) > 1 or len(self._graph.nodes[node.inputs[0]].outputs) > 1
        return node.kind == "destination" or joined

    def _context(self, node: Node) -> NodeContext:
        return NodeContext(
            node.id,
            self._graph.votes(node.id),
            self.ledgers,
            self.meters[node.id],
            self._rng,
            self._taps.point(node.id),
            self._commit,
        )

    def _caller(self, name: str, plugin: Plugin[Any]) -> PluginCaller:
        caller = PluginCaller(name, plugin)
        self.callers.append(caller)
        return caller

    def _make_processor(self, node: Node, declared: Processor) -> None:
        state = self._commit.new_state(frozenset(self.outbox) or None)
        if state is not None:
            state.sources = frozenset(each.id for each in sources_above(self._graph, node.id) if _is_read(each))
            state.cache_bytes = declared.state_cache_bytes
            self._states[node.id] = state
        self.processors[node.id] = self._instruments.new_processor(self._context(node), declared, state)

    def _add_source(self, node: Node, declared: Source) -> None:
        assert declared.connector is not None
        pipeline, context, wake = self._graph.pipeline, self._context(node), Signal()
        # A fresh one: what an earlier run left in its attributes must not reach this run.
        source = declared.connector.fresh()
        progress = self._add_shard_tracker(node.id, source)
        context.meter.window = declared.window
        context.meter.queue_counts = source.queue_counts
        scope = self._scopes[node.id] = progress.scope if progress is not None else ""
        atomic = declared.settings.atomic
        ledger = self.ledgers[node.id] = self._instruments.new_ledger(
            pipeline.id, node.id, context.voters, declared.window, scope=scope, atomic=atomic, on_released=wake.set
        )
        # Separate callers, so separate threads: acks and lag must not wait for a `read` that blocks.
        calls, ack_calls, requests = source_callers(node.id, source, declared.settings.rate)
        self.sources[node.id] = calls
        self.callers += [calls, ack_calls]
        if requests is not None:
            self.snapshot_requests[node.id] = requests
        self.lag_watches.append(LagWatch(node.id, self._caller(f"{node.id}-lag", source), context.meter))
        settings = pipeline.dead_letters.settings
        window = NackWindow(settings.window_size, settings.window_nack_threshold)
        self.settlers[node.id] = Settler(
            context, pipeline.id, ledger, window, self.dead_letters, self._store, ack_calls, progress
        )
        buffer = self._instruments.new_buffer(node.id, declared.batch_size, wake, atomic=atomic)
        self._read_buffers[node.id] = buffer
        reader = self.readers[node.id] = Reader(context, source, calls, ledger, buffer, wake)
        chain, fan_out = self._chain(node)
        source.payload_type = chain[0].decodes_into if chain else None
        reader.reads_ahead = any(each.in_processes for each in chain)
        if isinstance(source, EndpointSource):
            self.endpoints[node.id] = source
            self.tasks.append(Task(node.id, source.background, background=True))
        dispatcher = Dispatcher(context, ledger, buffer, chain, fan_out)
        self._dispatchers.append(dispatcher)
        source.others_done = self._others_done
        if not source.follows_others:
            self._leaders.append(ledger)
        self.tasks += [Task(node.id, reader.run), Task(node.id, dispatcher.run)]

    def _others_done(self) -> bool:
        # Letters that are sent again too: they may be records of the others.
        replayed = self.ledgers.get(DEAD_LETTERS)
        is_replaying = replayed is not None and replayed.in_flight > 0
        return not is_replaying and all(each.is_closed and not each.in_flight for each in self._leaders)

    def _add_shard_tracker(self, node: str, source: SourceConnector[Any]) -> ShardTracker | None:
        """Return the tracker of a source that shares its work, and add the background task of such a source."""
        if not isinstance(source, SharedSource):
            return None
        self.tasks.append(Task(node, source.background, background=True))
        return ShardTracker(source, self._store.shards, f"{self._graph.pipeline.id}/{node}")

    def _add_processors(self, node: Node) -> None:
        inbox = self._fan_ins[node.id].inbox
        chain, fan_out = self._chain(node)
        chain = [self.processors[node.id], *chain]
        deferral, declared = self._deferrals.get(node.id), node.declared
        if isinstance(declared, Processor) and declared.batch_seconds:
            collector = HeldBatches(declared.batch_seconds, declared.batch_size or defaults.BATCH_SIZE)
            work = partial(run_collecting, inbox, chain, fan_out, collector, self._must_leave)
            self.tasks.append(Task(node.id, work))
        elif deferral is None:
            self.tasks.append(Task(node.id, lambda: run_processors(inbox, chain, fan_out)))
        else:
            self.tasks.append(Task(node.id, lambda: run_deferring(inbox, chain, fan_out, deferral)))

    def _must_leave(self) -> bool:
        """True if nothing may wait for more records: none can come before those that wait are settled."""
        return self._commit.closing or not all(each.credit for each in self.ledgers.values())

    def _add_destination(self, node: Node, declared: Destination) -> None:
        assert declared.connector is not None
        context, connector = self._context(node), declared.connector.fresh()
        calls = self.destinations[node.id] = self._instruments.new_writer_calls(node.id, connector)
        self.callers.append(calls)
        ack_reader = None
        if connector.acks is AckMode.LATER and not self._commit.stages(connector):
            ack_reader = AckReader(context, self._caller(f"{node.id}-answers", connector))
            self.tasks.append(Task(node.id, ack_reader.run))
        fan_in = self._fan_ins[node.id]
        writer = Writer(context, declared, calls, ack_reader, fan_in.inbox)
        fan_in.take_at_once = writer.write_at_once
        self.tasks.append(Task(node.id, writer.run))

    def _add_replay(self) -> None:
        """Add the replay of dead letters, with an entry at every node that can refuse a record."""
        graph, meter, wake = self._graph, self.meters[DEAD_LETTERS], Signal()
        entries = {id: Entry(graph.votes(node.id), *self._entry(node)) for id, node in self._entry_nodes().items()}
        everyone = (1 << len(graph.destinations)) - 1
        ledger = Ledger(graph.pipeline.id, DEAD_LETTERS, everyone, REPLAY_WINDOW, on_released=wake.set)
        self.ledgers[DEAD_LETTERS] = ledger
        for processor in self.processors.values():
            # The replay calls processors from its own task, and a plugin allows only one call at a time.
            processor.turn = trio.Lock()
        self.replay = replay = Replay(
            graph.pipeline.id, self._store.letters, ledger, entries, meter, wake, self._commit, scopes=self._scopes
        )
        for dispatcher in self._dispatchers:
            dispatcher.on_end = replay.finish_source
        self.tasks.append(Task(DEAD_LETTERS, replay.feed))

    def _entry_nodes(self) -> dict[str, Node]:
        """Return the node at which the letters of each node enter: mostly the node itself."""
        nodes = self._graph.nodes
        connectors = {id: each.declared.connector for id, each in nodes.items() if isinstance(each.declared, Source)}
        return nodes | {each.source: nodes[id] for id, each in connectors.items() if isinstance(each, ReplayEntry)}

    def _entry(self, node: Node) -> tuple[list[ProcessorNode], FanOut]:
        """Return a path into a node that bypasses the node before it; for a source, the path behind it."""
        if node.id in self._fan_ins:
            fan_out = FanOut(self.meters[DEAD_LETTERS])
            # No copy: `Replay` has already copied the records of the letter.
            fan_out.add(self._fan_ins[node.id], changes_records=False)
            return [], fan_out
        chain, fan_out = self._chain(node)
        return ([] if node.kind == "source" else [self.processors[node.id]]) + chain, fan_out

    def _chain(self, node: Node) -> tuple[list[ProcessorNode], FanOut]:
        """Return the processors that follow a node without a channel, and the fan-out behind the last one."""
        chain: list[ProcessorNode] = []
        while len(node.outputs) == 1 and node.outputs[0] not in self._fan_ins:
            node = self._graph.nodes[node.outputs[0]]
            chain.append(self.processors[node.id])
        fan_out = FanOut(self.meters[node.id])
        for follower in node.outputs:
            changes_records = self._graph.nodes[follower].kind == "processor"
            fan_out.add(self._fan_ins[follower], changes_records=changes_records)
        return chain, fan_out


def _is_read(source: Node) -> bool:
    return not (isinstance(source.declared, Source) and isinstance(source.declared.connector, ReplayEntry))
