"""Wiring: from a graph to the tasks of a run, joined by bounded channels."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from conduit_py.batch import Batch
from conduit_py.graph.compile import DEAD_LETTERS
from conduit_py.graph.deferring import deferring
from conduit_py.graph.node import Graph, Node
from conduit_py.inspect.tap import Taps
from conduit_py.pipeline import Destination, Processor, Source
from conduit_py.sdk.destination import AckMode
from conduit_py.sdk.shared_source import SharedSource
from conduit_py.sdk.source import Source as SourceConnector
from conduit_py.sdk.state import State
from conduit_py.sdk.transactional import StagedDestination
from conduit_py.store.store import Store
from conduit_py.stream.ack_reader import AckReader
from conduit_py.stream.dead_letters import DeadLetterHandler, NackWindow
from conduit_py.stream.deferral import Deferral
from conduit_py.stream.dispatcher import Dispatcher
from conduit_py.stream.fan_out import FanOut, channel_size
from conduit_py.stream.gate import Gate
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import LagWatch, Meter
from conduit_py.stream.plugin_calls import PluginCaller
from conduit_py.stream.processor_node import ProcessorNode, run_deferring, run_processors
from conduit_py.stream.reader import ReadBuffer, Reader
from conduit_py.stream.replay import REPLAY_WINDOW, Entry, Replay
from conduit_py.stream.settler import Settler
from conduit_py.stream.shard_progress import ShardProgress
from conduit_py.stream.signal import Signal
from conduit_py.stream.writer import Writer


@dataclass(frozen=True)
class Task:
    """Something that runs for as long as its part of the run does."""

    node: str
    run: Callable[[], Awaitable[None]]


class Wiring:
    """Everything a run consists of, made and joined but not yet opened or started.

    A node is a task only where that adds concurrency: every source has a reader, a dispatcher and a
    settler, every destination a writer (and an ack reader), and adjacent processors share one task.
    With a gate (exactly-once) the settlers have no task: whoever makes transactions works with them.
    """

    def __init__(self, graph: Graph, store: Store, rng: random.Random, taps: Taps, gate: Gate | None = None) -> None:
        self._graph = graph
        self._store = store
        self._rng = rng
        self._taps = taps
        self._gate = gate
        self.meters: dict[str, Meter] = {node.id: Meter(node.id, node.kind) for node in graph.nodes.values()}
        self.meters[DEAD_LETTERS] = Meter(DEAD_LETTERS, "dead_letters")
        self.ledgers: dict[str, Ledger] = {}
        self._scopes: dict[str, str] = {}
        self.source_calls: dict[str, PluginCaller] = {}
        self.ack_calls: dict[str, PluginCaller] = {}
        self.destination_calls: dict[str, PluginCaller] = {}
        self.answer_calls: dict[str, PluginCaller] = {}
        self.lag_calls: dict[str, PluginCaller] = {}
        self.outbox_calls = {
            target: PluginCaller(f"outbox:{target}", connector.fresh())
            for target, connector in graph.pipeline.outbox.items()
        }
        self.lag_watches: list[LagWatch] = []
        self.stages: dict[str, ProcessorNode] = {}
        self.states: dict[str, State] = {}
        self.intakes: dict[str, ReadBuffer] = {}
        self.settlers: dict[str, Settler] = {}
        self.readers: list[Reader] = []
        self.backgrounds: list[Task] = []
        self.tasks: list[Task] = []
        letters = graph.pipeline.dead_letters
        self.office = DeadLetterHandler(
            DEAD_LETTERS, graph.pipeline.id, letters, self.meters[DEAD_LETTERS], store.letters
        )
        self.replay: Replay | None = None
        self.deferrals = {node: Deferral(gate, graph.votes(node)) for node in deferring(graph) if gate is not None}
        """The processors that may defer records."""
        self._channels = self._make_channels()
        self._make_stages()
        for node in graph.nodes.values():
            if isinstance(node.declared, Source):
                if node.declared.letters_of is None:
                    self._add_source(node)
            elif node.kind == "destination":
                self._add_destination(node)
            elif node.id in self._channels:
                self._add_processors(node)
        if letters.handler == "journal":
            self._add_replay()
        for send, _ in self._channels.values():
            send.close()

    @property
    def all_calls(self) -> list[PluginCaller]:
        kinds = (
            self.source_calls, self.ack_calls, self.destination_calls, self.answer_calls, self.lag_calls,
            self.outbox_calls,
        )  # fmt: skip
        return [calls for each in kinds for calls in each.values()]

    def look(self) -> None:
        """Note in the meters what nobody counts while it changes: what waits, and for how long."""
        now = trio.current_time()
        for id, (_, inbox) in self._channels.items():
            self.meters[id].queued = inbox.statistics().current_buffer_used
        for id, ledger in self.ledgers.items():
            meter, read_at = self.meters[id], ledger.oldest_read_at
            meter.in_flight = ledger.in_flight
            meter.oldest_seconds = 0.0 if read_at is None else now - read_at
            meter.stalled_seconds = 0.0 if read_at is None else now - max(read_at, meter.settled_at)

    def _make_channels(
        self,
    ) -> "dict[str, tuple[trio.MemorySendChannel[Batch], trio.MemoryReceiveChannel[Batch]]]":
        """One channel per node that begins a task. Senders that wait are served in turn, so fan-in is fair."""
        return {
            node.id: trio.open_memory_channel[Batch](channel_size(self._graph.pipeline.delivery))
            for node in self._graph.nodes.values()
            if self._begins_task(node)
        }

    def _begins_task(self, node: Node) -> bool:
        if node.kind == "source":
            return False
        if node.id in self.deferrals:
            return True  # so that all its records come through one channel
        joined = len(node.inputs) > 1 or len(self._graph.nodes[node.inputs[0]].outputs) > 1
        return node.kind == "destination" or joined

    def _make_stages(self) -> None:
        for node in self._graph.nodes.values():
            if isinstance(node.declared, Processor):
                voters = self._graph.votes(node.id)
                if self._gate is not None:
                    self.states[node.id] = state = State()
                    state.targets = frozenset(self.outbox_calls) or None
                self.stages[node.id] = ProcessorNode(
                    node.id, node.declared, voters, self.ledgers, self.meters[node.id], self._rng,
                    self._taps.point(node.id), self.states.get(node.id),
                )  # fmt: skip

    def _add_source(self, node: Node) -> None:
        declared = node.declared
        assert isinstance(declared, Source)
        assert declared.connector is not None
        pipeline, meter = self._graph.pipeline, self.meters[node.id]
        meter.window = declared.window
        wake = Signal()
        voters = self._graph.votes(node.id)
        source = declared.connector.fresh()
        sharing = self._sharing(node.id, source)
        meter.tally = source.tally
        scope = self._scopes[node.id] = sharing.scope if sharing is not None else ""
        ledger = Ledger(pipeline.id, node.id, voters, declared.window, scope=scope, on_released=wake.set)
        self.ledgers[node.id] = ledger
        calls = self.source_calls[node.id] = PluginCaller(node.id, source)
        # Acks must not wait behind a read that waits for the next record.
        ack_calls = self.ack_calls[node.id] = PluginCaller(f"{node.id}-ack", source)
        settings = pipeline.dead_letters.settings
        window = NackWindow(settings.window_size, settings.window_nack_threshold)
        at_most_once = pipeline.delivery == "at_most_once"
        settler = Settler(
            node.id, pipeline.id, ledger, window, self.office, self._store, ack_calls, meter,
            commits=not at_most_once, sharing=sharing,
        )  # fmt: skip
        self.settlers[node.id] = settler
        intake = self.intakes[node.id] = ReadBuffer(declared.batch_size, wake)
        reader = Reader(node.id, source, calls, ledger, intake, wake, meter)
        stages, outlet = self._chain(node)
        dispatcher = Dispatcher(
            node.id, intake, ledger, voters, stages, outlet, meter, self._taps.point(node.id),
            before_sending=settler.commit_first if at_most_once else None, gate=self._gate,
        )  # fmt: skip
        gate = self._gate

        async def dispatch() -> None:
            await dispatcher.run()
            (settler.finish if gate is None else gate.leave)()
            if self.replay is not None:
                self.replay.source_ended()

        lag_calls = self.lag_calls[node.id] = PluginCaller(f"{node.id}-lag", source)
        self.lag_watches.append(LagWatch(node.id, lag_calls, meter))
        self.readers.append(reader)
        self.tasks += [Task(node.id, reader.run), Task(node.id, dispatch)]
        if gate is None:
            self.tasks.append(Task(node.id, settler.run))
        else:
            gate.entrants += 1

    def _sharing(self, node: str, source: SourceConnector[Any]) -> ShardProgress | None:
        """What joins a source with those that share its work; it has something to do in the background then."""
        if not isinstance(source, SharedSource):
            return None
        self.backgrounds.append(Task(node, source.background))
        return ShardProgress(source, self._store.shards, f"{self._graph.pipeline.id}/{node}")

    def _add_processors(self, node: Node) -> None:
        inbox = self._channels[node.id][1]
        stages, outlet = self._chain(node)
        stages = [self.stages[node.id], *stages]
        deferral = self.deferrals.get(node.id)
        if deferral is None:
            self.tasks.append(Task(node.id, lambda: run_processors(inbox, stages, outlet)))
        else:
            self.tasks.append(Task(node.id, lambda: run_deferring(inbox, stages, outlet, deferral)))

    def _add_destination(self, node: Node) -> None:
        declared = node.declared
        assert isinstance(declared, Destination)
        assert declared.connector is not None
        meter, voter, point = self.meters[node.id], self._graph.votes(node.id), self._taps.point(node.id)
        connector = declared.connector.fresh()
        calls = self.destination_calls[node.id] = PluginCaller(node.id, connector)
        ack_reader = None
        staged = self._gate is not None and isinstance(connector, StagedDestination)
        if connector.acks is AckMode.LATER and not staged:
            answer_calls = self.answer_calls[node.id] = PluginCaller(f"{node.id}-answers", connector)
            ack_reader = AckReader(node.id, answer_calls, voter, self.ledgers, meter, point)
            self.tasks.append(Task(node.id, ack_reader.run))
        writer = Writer(node.id, declared, calls, voter, self.ledgers, ack_reader, meter, self._rng, point, self._gate)
        inbox = self._channels[node.id][1]
        self.tasks.append(Task(node.id, lambda: writer.run(inbox)))

    def _add_replay(self) -> None:
        """Let dead letters in at every node that can refuse a record. It casts all votes that are not behind it."""
        graph, meter, wake = self._graph, self.meters[DEAD_LETTERS], Signal()
        entries = {id: Entry(graph.votes(node.id), *self._entry(node)) for id, node in self._ways_in().items()}
        everyone = (1 << len(graph.destinations)) - 1
        ledger = Ledger(graph.pipeline.id, DEAD_LETTERS, everyone, REPLAY_WINDOW, on_released=wake.set)
        self.ledgers[DEAD_LETTERS] = ledger
        for stage in self.stages.values():
            stage.turn = trio.Lock()
        self.replay = Replay(
            graph.pipeline.id, self._store.letters, ledger, entries, meter, wake, scopes=self._scopes, gate=self._gate
        )
        self.tasks.append(Task(DEAD_LETTERS, self.replay.feed))
        if self._gate is None:
            self.tasks.append(Task(DEAD_LETTERS, self.replay.settle))
        else:
            self._gate.entrants += 1

    def _ways_in(self) -> dict[str, Node]:
        """The node at which letters of each node come in: mostly itself."""
        nodes = self._graph.nodes
        stands_for = {id: each.declared.letters_of for id, each in nodes.items() if isinstance(each.declared, Source)}
        return nodes | {other: nodes[id] for id, other in stands_for.items() if other is not None}

    def _entry(self, node: Node) -> tuple[list[ProcessorNode], FanOut]:
        """The way into a node that does not lead through the one before it; behind it, for a source."""
        if node.id in self._channels:
            outlet = FanOut(self.meters[DEAD_LETTERS])
            outlet.add(self._channels[node.id][0].clone(), changes_records=False)
            return [], outlet
        stages, outlet = self._chain(node)
        return ([] if node.kind == "source" else [self.stages[node.id]]) + stages, outlet

    def _chain(self, node: Node) -> tuple[list[ProcessorNode], FanOut]:
        """The processors that follow a node without a channel in between, and the outlet of the last."""
        stages: list[ProcessorNode] = []
        while len(node.outputs) == 1 and node.outputs[0] not in self._channels:
            node = self._graph.nodes[node.outputs[0]]
            stages.append(self.stages[node.id])
        outlet = FanOut(self.meters[node.id])
        for follower in node.outputs:
            send = self._channels[follower][0].clone()
            outlet.add(send, changes_records=self._graph.nodes[follower].kind == "processor")
        return stages, outlet
