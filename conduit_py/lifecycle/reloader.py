"""Reloader: keeps a fleet in line with its files: the least that an edit takes, and nothing for a bad one."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal, TypeAlias

import trio

from conduit_py.config.definitions import Definitions, LoadedFiles
from conduit_py.config.loaded import LoadedPipeline
from conduit_py.errors import FleetError, PipelineInvalid, Problem, RunError, describe
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import diff_definitions
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.sdk.options import at
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.store import Store

log = logging.getLogger("conduit_py.server")

Step: TypeAlias = Literal["add", "remove", "swap", "restart", "note"]
"""What an edit takes. A note changes nothing that runs: the next start is by the new definition."""

GONE_SECONDS = 1.0
"""How long a definition must be gone before it counts as removed: editors put files away for a moment."""
OPEN_SECONDS = 60.0
"""How long new processors may take to open before the old ones are kept."""
SLOW_SECONDS = 10.0
"""How long files may take to be read before the log names the one that does."""


@dataclass(frozen=True)
class Reload:
    """What came of reading the files again; the steps go on after it is known."""

    steps: dict[str, Step]
    problems: tuple[Problem, ...]


class Reloader:
    """Compares what the files say with what runs, and has each pipeline follow, none waiting for another.

    A pipeline whose new definition is wrong goes on with the one it has; its member says why. What the
    user stopped stays stopped; what failed for good is started again when its definition has changed.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        definitions: Definitions,
        nursery: trio.Nursery,
        *,
        shown: Callable[[str], str] = str,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        """`shown` makes a text fit to be logged: without secrets, and with short paths."""
        self.definitions = definitions
        self._fleet = fleet
        self._store = store
        self._nursery = nursery
        self._shown = shown
        self._slow_seconds = slow_seconds
        self._lock = trio.Lock()
        self._known: dict[str, LoadedPipeline] = {}
        self._wanted: dict[str, tuple[LoadedPipeline, Graph] | None] = {}
        self._working: set[str] = set()
        self._reported: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether something is still being carried out."""
        return bool(self._working)

    async def begin(self, reading: LoadedFiles) -> None:
        """Take in everything that the files have, started by nobody yet."""
        for loaded, _ in self._sound(reading)[0]:
            await self._take_in(loaded)

    async def reload(self, *, afresh: bool = False, gone_seconds: float = 0.0) -> Reload:
        """Read the files and begin to carry out what they say; problems are in the answer and in the log.

        What is gone is looked for again after `gone_seconds` before it counts as removed.
        """
        async with self._lock:
            reading = await self._read(afresh=afresh)
            if gone_seconds and self._missing(reading)[0]:
                await trio.sleep(gone_seconds)
                reading = await self._read(afresh=False)
            return self._follow(reading)

    async def _read(self, *, afresh: bool) -> LoadedFiles:
        patience = trio.CancelScope()
        self._nursery.start_soon(self._name_slow_file, patience)
        try:
            # In a thread, for files may import much. Only the end of the server cancels this, and a file whose
            # code never ends must not keep it from ending.
            return await trio.to_thread.run_sync(partial(self.definitions.read, afresh=afresh), abandon_on_cancel=True)
        finally:
            patience.cancel()

    async def _name_slow_file(self, patience: trio.CancelScope) -> None:
        with patience:
            for turn in count():
                await trio.sleep(self._slow_seconds * 2**turn)
                file = self._shown(str(self.definitions.loading or self.definitions.path))
                log.warning("%s takes long to load; until its code ends, no change of any file is followed", file)

    def _follow(self, reading: LoadedFiles) -> Reload:
        sound, problems = self._sound(reading)
        steps: dict[str, Step] = {}
        for loaded, graph in sound:
            step = self._step(loaded, graph)
            if step is not None:
                steps[loaded.id] = step
                self._want(loaded.id, (loaded, graph))
        gone, broken = self._missing(reading)
        for id in gone:
            steps[id] = "remove"
            self._want(id, None)
        for id, problem in broken.items():
            self._flag(id, problem)
        return Reload(steps, tuple(problems))

    def _missing(self, reading: LoadedFiles) -> tuple[list[str], dict[str, Problem]]:
        """The pipelines that were taken out of the files, and those that are there but cannot be used, with why."""
        present = {loaded.id for loaded in reading.whole.pipelines}
        missing = {id: reading.problem_of(id, loaded.file) for id, loaded in self._known.items() if id not in present}
        broken = {id: problem for id, problem in missing.items() if problem is not None}
        return [id for id in missing if id not in broken], broken

    def _sound(self, reading: LoadedFiles) -> tuple[list[tuple[LoadedPipeline, Graph]], list[Problem]]:
        """What can be used of a reading, and all problems of the rest, which are logged when they are new."""
        sound, problems = [], list(reading.whole.problems)
        for loaded in reading.whole.pipelines:
            try:
                sound.append((loaded, compile_pipeline(loaded.pipeline)))
            except PipelineInvalid as invalid:
                self._flag(loaded.id, invalid.problems[0])
                problems += [at(problem, loaded.id) for problem in invalid.problems]
        self._report(map(str, problems), map(str, reading.whole.warnings))
        return sound, problems

    def _report(self, problems: Iterable[str], warnings: Iterable[str]) -> None:
        findings = {**dict.fromkeys(problems, logging.ERROR), **dict.fromkeys(warnings, logging.WARNING)}
        for finding, level in findings.items():
            if finding not in self._reported:
                log.log(level, "%s", self._shown(finding))
        self._reported = set(findings)

    def _step(self, loaded: LoadedPipeline, graph: Graph) -> Step | None:
        """What a definition takes, None if nothing."""
        known = self._known.get(loaded.id)
        if known is None:
            return "add"
        member = self._fleet[loaded.id]
        busy = loaded.id in self._working
        if known is loaded and not busy:
            # Nothing new, but the file may have been unusable for another reason, such as an id used twice.
            if not isinstance(member.definition, _NotOpened):
                self._clear(loaded.id)
            return None
        changed = diff_definitions(member.graph, graph)
        if not changed and loaded.desired == known.desired and not busy:
            self._known[loaded.id] = loaded
            self._clear(loaded.id)
            return None
        if not member.running:
            return "note"
        return "restart" if changed.rest else "swap" if changed.processors else "note"

    def _flag(self, id: str, problem: Problem) -> None:
        if id in self._known:
            self._fleet[id].definition = problem

    def _clear(self, id: str) -> None:
        member = self._fleet[id]
        if member.definition is not None:
            member.definition = None
            log.info("pipeline %s: its definition is sound again, and the one in effect", id)

    def _want(self, id: str, what: tuple[LoadedPipeline, Graph] | None) -> None:
        """Have a task of its own bring the pipeline there; one that is at it takes this up next."""
        self._wanted[id] = what
        if id not in self._working:
            self._working.add(id)
            self._nursery.start_soon(self._work, id)

    async def _work(self, id: str) -> None:
        try:
            while id in self._wanted:
                what = self._wanted.pop(id)
                try:
                    await (self._remove(id) if what is None else self._change(*what))
                except FleetError as error:
                    # A shutdown, or a user who was quicker: they win.
                    log.info("pipeline %s does not follow its file: %s", id, error.message)
                except Exception as error:  # a border: one pipeline's trouble may not end the server
                    log.exception("pipeline %s cannot follow its file", id)
                    self._flag(id, Problem("", describe(error)))
        finally:
            self._working.discard(id)

    async def _remove(self, id: str) -> None:
        log.info("pipeline %s: gone from the files, so it is drained and removed; its positions stay", id)
        await self._fleet.remove(id)
        self._known.pop(id, None)

    async def _change(self, loaded: LoadedPipeline, graph: Graph) -> None:
        id = loaded.id
        known = self._known.get(id)
        if known is None:
            await self._take_in(loaded)
            log.info("pipeline %s: new in %s", id, loaded.file)
            await self._fleet.resume(id)
            return
        self._known[id] = loaded
        member = self._fleet[id]
        changed = diff_definitions(member.graph, graph)
        if not member.running or changed.rest:
            then = ", so it is drained and started anew" if member.running else ""
            log.info("pipeline %s: %s changed%s", id, changed.rest or "its definition", then)
            await self._fleet.replace(loaded.pipeline)
        elif changed and not await self._swap(loaded, sorted(changed.processors)):
            return
        member.definition = None
        self._heed_status(known, loaded, bool(changed))

    async def _swap(self, loaded: LoadedPipeline, nodes: list[str]) -> bool:
        try:
            with trio.fail_after(OPEN_SECONDS):
                await self._fleet.swap(loaded.pipeline, nodes)
        except (RunError, trio.TooSlowError) as error:
            self._keep_old(loaded, error)
            return False
        if nodes:
            log.info("pipeline %s: goes on with %s as the file has it now", loaded.id, ", ".join(nodes))
        return True

    def _keep_old(self, loaded: LoadedPipeline, error: RunError | trio.TooSlowError) -> None:
        problem = _NotOpened("", f"its processors were not ready within {OPEN_SECONDS:g} s", None, str(loaded.file))
        if isinstance(error, RunError):
            nodes = compile_pipeline(loaded.pipeline).nodes
            place = nodes[error.node].declared.place if error.node in nodes else None
            spot = place or (str(loaded.file), loaded.line)
            problem = _NotOpened(error.node or "", error.message, error.suggestion, *spot)
        self._flag(loaded.id, problem)
        log.error("pipeline %s goes on with the processors it has: %s", loaded.id, self._shown(problem.message))

    def _heed_status(self, known: LoadedPipeline, loaded: LoadedPipeline, changed: bool) -> None:
        """Start what failed by the old definition, and start or stop what the file now wants started or stopped."""
        member = self._fleet[loaded.id]
        if loaded.desired == "stopped" != known.desired and member.running:
            self._fleet.stop(loaded.id)
        elif loaded.desired == "running" and not member.running:
            mended = changed and member.state.status is Status.DEGRADED
            if mended or known.desired == "stopped":
                self._fleet.start(loaded.id)

    async def _take_in(self, loaded: LoadedPipeline) -> None:
        """Add a pipeline to the fleet. One that its file wants stopped is, until a user starts it."""
        unseen = (await self._store.state(loaded.id)).status is Status.CREATED
        if loaded.desired == "stopped" and unseen:
            await self._store.save_state(loaded.id, PipelineState(Status.STOPPED, Stopper.USER))
        await self._fleet.add(loaded.pipeline)
        self._known[loaded.id] = loaded


class _NotOpened(Problem):
    """A sound definition with a processor that could not be opened."""
