"""The command `run`: runs the pipelines of a file together, until they end or a signal stops them."""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

import trio

from conduit_py.cli.check import error_fields, load_with_graphs, require_engines, require_spark_for, status_of
from conduit_py.cli.display import Display, choose_display
from conduit_py.cli.errors import exit_code_of
from conduit_py.cli.output import ExitCode, log_to_stderr, put_json
from conduit_py.cli.result import ProgressLine, RecordRate, RunResult, advise_retries
from conduit_py.cli.state import choose_state, claim_ids
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import ConduitError, EnvironmentUnfit, Problem
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.pipeline import Pipeline, without_schedule
from conduit_py.pipeline_settings import EngineName
from conduit_py.runner import supervise
from conduit_py.status import Status, Stopper
from conduit_py.store.store import Store, open_store

if TYPE_CHECKING:
    from conduit_py.telemetry.metrics_text import MetricsSink

SupervisorFactory: TypeAlias = Callable[[Graph, Store], Supervisor]

SEVERITY = (ExitCode.OK, ExitCode.DEAD_LETTERS, ExitCode.FAILED)
"""Of several pipelines the worst one decides: what failed has delivered less than what refused records."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_file(
    file: Path,
    *,
    pipeline: str | None = None,
    state: str | Path | None = None,
    fresh: bool = False,
    fail_on_dead_letters: bool = False,
    once: bool = False,
    stop_timeout: float | None = None,
    engine: EngineName | None = None,
    master: str | None = None,
    observe: Sequence[str] = (),
    as_json: bool = False,
    debug: bool = False,
) -> ExitCode:
    """Run the pipelines of a file. Raises what prevents a start; how they ended is in the exit code."""
    try:
        graphs = _load_graphs(file, pipeline, engine, master)
        if once:
            graphs = [compile_pipeline(without_schedule(graph.pipeline)) for graph in graphs]
        pipelines = [graph.pipeline for graph in graphs]
        if stop_timeout is not None:
            for each in pipelines:
                each.settings = each.settings.model_copy(update={"stop_seconds": stop_timeout})
        # After loading: a file may configure logging itself, and basicConfig then leaves it alone.
        log_to_stderr(debug=debug)
        display = choose_display(as_json=as_json, stdout_taken=any(map(writes_to_stdout, pipelines)))
        for note in tail_notes(file, pipelines):
            display.say("tailing", note)
        for each in pipelines:
            if each.schedule is not None:
                when = f"{each.schedule.expression} ({each.schedule.timezone})"
                note = f"runs at {when} until it is stopped, with Ctrl-C or SIGTERM; --once runs it now and ends"
                display.say("scheduled", f"{each.id}: {note}")
        # Before the state is opened: a run that lacks Spark must not create a folder or take a lock.
        require_engines(pipelines)
        require_observers(observe)
        # What a start has made stays: no collection has to look at it, nor does the end of the process.
        gc.freeze()
        results = trio.run(_run, graphs, file, state, fresh, display, observe)
        store = str(state or choose_state(file))
        results = [replace(each, fails_on_dead_letters=fail_on_dead_letters, store=store) for each in results]
        # After the store is closed: a result that is printed is a result that is saved.
        display.end(results)
        return max((result.exit_code for result in results), key=SEVERITY.index)
    except ConduitError as error:
        if as_json:
            code = int(exit_code_of(error))
            put_json({"type": "result", "status": status_of(error), **error_fields(error), "exit_code": code})
        raise


def _load_graphs(file: Path, pipeline: str | None, engine: EngineName | None, master: str | None) -> list[Graph]:
    """The pipelines whose status in the file is running, or the one with the given id whatever its status."""
    checked = load_with_graphs(file, pipeline, engine=engine, master=master)
    loaded = [each for each in checked if pipeline or each.desired == "running"]
    if not loaded:
        hint = "run one of them with --pipeline ID"
        raise FileInvalid(file, [Problem("", "all its pipelines have status: stopped", hint, str(file))])
    require_spark_for(master, loaded)
    return [each.graph for each in loaded]


def writes_to_stdout(pipeline: Pipeline) -> bool:
    """Whether a destination of this pipeline writes records to stdout."""
    connectors = [destination.connector for destination in pipeline.destinations]
    connectors.append(pipeline.dead_letters.policy.connector)
    return any(type(each).__module__.startswith("conduit_connectors.stdio") for each in connectors)


def tail_notes(file: Path, pipelines: Sequence[Pipeline]) -> list[str]:
    """What to say about sources of a YAML file that wait for more at the end, so that the run does not end."""
    # Only of YAML, where waiting is the default, as in Conduit: in Python somebody has written tail=True.
    if file.suffix not in (".yaml", ".yml"):
        return []
    sources = [(pipeline.id, source) for pipeline in pipelines for source in pipeline.sources]
    return [
        f"{pipeline}: {source.id} waits for more at the end of {source.connector.data_file()}: Ctrl-C ends the run, "
        "`tail: false` in its settings reads to the end and no further"
        for pipeline, source in sources
        if getattr(source.connector.options, "tail", False) and source.connector.data_file() is not None
    ]


async def _run(
    graphs: Sequence[Graph],
    file: Path,
    state: str | Path | None,
    fresh: bool,
    display: Display,
    observe: Sequence[str] = (),
    supervised: SupervisorFactory = supervise,
) -> list[RunResult]:
    project_state = choose_state(file)
    async with await open_store(state or project_state) as store:
        if state is None:
            await claim_ids(store, project_state, {graph.pipeline.id: file for graph in graphs})
        if fresh:
            for graph in graphs:
                await store.reset_claim(graph.pipeline.id)
        session = RunSession(graphs, store, display, supervised)
        async with observing(observe, session.add_metrics):
            return await session.run()


class RunSession:
    """Pipelines that run side by side in one process. One that fails does not stop the others."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        store: Store,
        display: Display,
        supervised: SupervisorFactory = supervise,
    ) -> None:
        self._supervisors = [supervised(graph, store) for graph in graphs]
        self._store = store
        self._display = display
        self._rates = [RecordRate() for _ in graphs]
        self._results: dict[Supervisor, RunResult] = {}
        self._forced = False

    async def run(self) -> list[RunResult]:
        with self._display.running():
            async with trio.open_nursery() as nursery:
                await nursery.start(stop_on_signal, self._stop, self._force)
                nursery.start_soon(self._watch)
                # A nursery of its own: signals are handled and progress is shown until the last pipeline has ended.
                async with trio.open_nursery() as running:
                    for supervisor in self._supervisors:
                        running.start_soon(self._run_one, supervisor)
                nursery.cancel_scope.cancel()
        return [self._results[supervisor] for supervisor in self._supervisors]

    def add_metrics(self, sink: "MetricsSink") -> None:
        """Add the metrics of the nodes of every pipeline."""
        from conduit_py.telemetry.metrics_text import add_nodes

        for supervisor in self._supervisors:
            add_nodes(sink, supervisor.graph, supervisor.progress())

    async def _run_one(self, supervisor: Supervisor) -> None:
        # Before the run: afterwards every pipeline has a position.
        resumed = bool(await self._store.positions(supervisor.pipeline.id))
        state = await supervisor.run()
        policy = supervisor.pipeline.dead_letters.policy
        advice = advise_retries(supervisor.pipeline, supervisor.error) if state.status is Status.DEGRADED else None
        self._results[supervisor] = RunResult(
            supervisor.progress(), state, resumed, self._forced, policy, retry_advice=advice
        )

    async def _watch(self) -> None:
        while True:
            await trio.sleep(self._display.seconds)
            self._display.show(self._progress_lines())

    def _progress_lines(self) -> list[ProgressLine]:
        return [self._progress_line(*pair) for pair in zip(self._supervisors, self._rates, strict=True)]

    def _progress_line(self, supervisor: Supervisor, rate: RecordRate) -> ProgressLine:
        result = self._results.get(supervisor)
        progress = result.progress if result else supervisor.progress()
        return ProgressLine(progress, rate.add(trio.current_time(), progress.acked), supervisor.state.error)

    def _stop(self) -> None:
        self._display.say("stopping", "stopping; press Ctrl-C again to force")
        for supervisor in self._running():
            supervisor.stop(by=Stopper.USER)

    def _force(self) -> None:
        self._display.say("forcing", "stopping at once; what is in flight will be read again")
        self._forced = True
        for supervisor in self._running():
            supervisor.force(by=Stopper.USER)

    def _running(self) -> list[Supervisor]:
        return [supervisor for supervisor in self._supervisors if supervisor not in self._results]


OBSERVERS = {"otel": "opentelemetry.exporter.otlp.proto.http", "openlineage": "openlineage.client"}
"""By name of an observer, which is also its extra, the package that it needs."""


def require_observers(names: Sequence[str]) -> None:
    """Return if what these observers need is installed, else raise EnvironmentUnfit."""
    for name in names:
        try:
            import_module(OBSERVERS[name])
        except ImportError as error:
            hint = f"pip install 'conduit-dataflow[{name}]'"
            raise EnvironmentUnfit(f"--observe {name} needs a package: {error}", suggestion=hint) from error


@asynccontextmanager
async def observing(names: Sequence[str], collect: "Callable[[MetricsSink], object]") -> AsyncIterator[None]:
    """Observe the pipelines that begin in this block. Nothing of an observer is imported unless it is named."""
    async with AsyncExitStack() as stack:
        if "otel" in names:
            from conduit_py.telemetry.open_telemetry import open_telemetry

            await stack.enter_async_context(open_telemetry(collect))
        if "openlineage" in names:
            from conduit_py.telemetry.open_lineage import open_lineage

            await stack.enter_async_context(open_lineage())
        yield


async def stop_on_signal(
    stop: Callable[[], None],
    force: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` at the first SIGINT or SIGTERM and `force` at the second; the third ends the process."""
    with trio.open_signal_receiver(*SIGNALS) as signals:
        count = _SignalCount()
        task_status.started()
        await anext(signals)
        count.received = True
        stop()
        # Two of a kind that arrive while the loop is held up are received as one.
        if count.arrived == 1:
            await anext(signals)
        force()
        # One that nobody takes is raised again at the end, when nobody stops for it any more.
        async for _ in signals:
            pass


class _SignalCount:
    """Counts signals in their handler."""

    # Not in the event loop: a processor that never returns holds up the loop that would receive them.
    def __init__(self) -> None:
        receive = signal.getsignal(signal.SIGINT)
        assert callable(receive)
        self._receive = receive
        self.arrived = 0
        self.received = False
        for number in SIGNALS:
            signal.signal(number, self._count)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.arrived += 1
        # To trio first: the loop may still be able to stop gracefully.
        self._receive(number, frame)
        if self.arrived > 2:
            _leave()
        if self.arrived == 2 and not self.received:
            # os.write, not print: a signal may interrupt a print, whose buffer cannot be entered twice.
            os.write(sys.stderr.fileno(), b"\nwaiting for a call that does not return; a third signal ends at once\n")


def _leave() -> None:
    """End the process at once; the next run reads again what was not settled."""
    # Invariants hold after a crash at any point, so leaving without any clean-up is safe.
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h")  # a live table has hidden the cursor
    os.write(sys.stderr.fileno(), b"\nended at once; the next run reads again what was in flight\n")
    os._exit(ExitCode.FAILED)
