"""Reloader: applies changes of pipeline files to a running fleet, with as little interruption as possible."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from conduit_py.config.definitions import Definitions, LoadedFiles
from conduit_py.config.loaded import LoadedPipeline
from conduit_py.errors import EnvironmentUnfit, FleetError, PipelineInvalid, Problem, RunError, describe
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import diff_definitions
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.pipeline_log import FILE_RELOAD
from conduit_py.sdk.plugin import at
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.store import Store

log = logging.getLogger("conduit_py.server")

Step: TypeAlias = Literal["add", "remove", "swap", "restart", "note"]
"""What a change requires. After a "note" nothing happens until the next start, which uses the new definition."""

Claim: TypeAlias = Callable[[Mapping[str, Path]], Awaitable[None]]
"""Records from which file each pipeline comes, by id. Raises EnvironmentUnfit if its state belongs to another file."""

GONE_SECONDS = 1.0
"""How long a definition must be gone before it counts as removed: editors remove files for a moment."""
OPEN_SECONDS = 60.0
"""How long new processors may take to open before the old ones are kept."""
SLOW_SECONDS = 10.0
"""How long files may take to load before the log names the one that is loading."""


@dataclass(frozen=True)
class Reload:
    """What a reload found. Its steps are carried out in the background."""

    steps: dict[str, Step]
    problems: tuple[Problem, ...]


class Reloader:
    """Compares the definitions in the files with those that run, and updates each pipeline in a task of its own.

    A pipeline whose new definition has problems keeps the one it has; its member has the problem. What the user stopped
    stays stopped; what is degraded is started again when its definition changes.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        definitions: Definitions,
        nursery: trio.Nursery,
        *,
        shown: Callable[[str], str] = str,
        claim: Claim | None = None,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        """`shown` prepares a text for the log: without secrets, and with short paths.

        `claim` is called for pipelines that a reload adds or finds in another file.
        """
        self.definitions = definitions
        self._fleet = fleet
        self._store = store
        self._nursery = nursery
        self._shown = shown
        self._claim = claim
        self._slow_seconds = slow_seconds
        self._lock = trio.Lock()
        self._known: dict[str, LoadedPipeline] = {}
        self._targets: dict[str, tuple[LoadedPipeline, Graph] | None] = {}
        self._working: set[str] = set()
        self._reported: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether steps are still being carried out."""
        return bool(self._working)

    async def begin(self, reading: LoadedFiles) -> None:
        """Add all pipelines of the files to the fleet, without starting them."""
        for loaded, _ in self._usable(reading)[0]:
            await self._add(loaded)

    async def reload(self, *, afresh: bool = False, again: Collection[Path] = (), gone_seconds: float = 0.0) -> Reload:
        """Load the files and begin to carry out the changes. Problems are in the result and in the log.

        Files that have not changed are loaded with `afresh`, or if they are in `again`.
        A definition that is gone counts as removed if it is still gone after `gone_seconds`.
        """
        # One at a time: two reloads would compare with the same definitions and apply a change twice.
        async with self._lock:
            reading = await self._read(afresh=afresh, again=again)
            if gone_seconds and self._missing(reading)[0]:
                await trio.sleep(gone_seconds)
                reading = await self._read()
            return self._follow(reading)

    async def check_secrets(self) -> None:
        """Have a rotated secret read again where that ends no good connection; mark the pipelines that use the old one.

        That is where a pipeline of the file has failed, perhaps for the old secret, and where none is at work.
        """
        # In a thread: secrets may be on a network file system.
        rotated = await trio.to_thread.run_sync(self.definitions.rotated_secrets, abandon_on_cancel=True)
        for id, loaded in list(self._known.items()):
            secrets, member = rotated.get(loaded.file, []), self._fleet[id]
            if secrets and member.definition is None:
                what = f"the secret in {secrets[0].where} is not what it was when it was read; the old one is in use"
                member.definition = _SecretRotated("", what, _USE_NOW, str(loaded.file), loaded.line)
                log.warning("pipeline %s: %s (%s)", id, self._shown(what), _USE_NOW)
            elif not secrets and isinstance(member.definition, _SecretRotated):
                member.definition = None
        # A secret that is missing would make the file unusable, and it is often only between two versions.
        whole = [file for file, secrets in rotated.items() if not any(one.missing for one in secrets)]
        if again := [file for file in whole if self._may_interrupt(file)]:
            await self.reload(again=again)

    def _may_interrupt(self, file: Path) -> bool:
        statuses = {self._fleet[id].state.status for id, loaded in self._known.items() if loaded.file == file}
        return not statuses.isdisjoint(_FAILED) or statuses.isdisjoint(_AT_WORK)

    async def _read(self, *, afresh: bool = False, again: Collection[Path] = ()) -> LoadedFiles:
        patience = trio.CancelScope()
        self._nursery.start_soon(self._name_slow_file, patience)
        try:
            # In a thread, because files may import much. Only a shutdown cancels this, and a file whose code never
            # ends must not block the shutdown.
            read = partial(self.definitions.read, afresh=afresh, again=again)
            return await trio.to_thread.run_sync(read, abandon_on_cancel=True)
        finally:
            patience.cancel()

    async def _name_slow_file(self, patience: trio.CancelScope) -> None:
        with patience:
            for turn in count():
                await trio.sleep(self._slow_seconds * 2**turn)
                file = self._shown(str(self.definitions.loading or self.definitions.path))
                log.warning("%s takes long to load; no change of any file takes effect until its code ends", file)

    def _follow(self, reading: LoadedFiles) -> Reload:
        sound, problems = self._usable(reading)
        steps: dict[str, Step] = {}
        for loaded, graph in sound:
            step = self._step(loaded, graph)
            if step is not None:
                steps[loaded.id] = step
                self._set_target(loaded.id, (loaded, graph))
        gone, broken = self._missing(reading)
        for id in gone:
            steps[id] = "remove"
            self._set_target(id, None)
        for id, problem in broken.items():
            self._flag(id, problem)
        return Reload(steps, tuple(problems))

    def _missing(self, reading: LoadedFiles) -> tuple[list[str], dict[str, Problem]]:
        """The pipelines that are no longer in the files, and the problem of each that is there but not usable."""
        present = {loaded.id for loaded in reading.whole.pipelines}
        missing = {id: reading.problem_of(id, loaded.file) for id, loaded in self._known.items() if id not in present}
        broken = {id: problem for id, problem in missing.items() if problem is not None}
        return [id for id in missing if id not in broken], broken

    def _usable(self, reading: LoadedFiles) -> tuple[list[tuple[LoadedPipeline, Graph]], list[Problem]]:
        """The usable definitions, and all problems of the others, which are logged when they are new."""
        sound, problems = [], list(reading.whole.problems)
        for loaded in reading.whole.pipelines:
            try:
                sound.append((loaded, loaded.graph))
            except PipelineInvalid as invalid:
                self._flag(loaded.id, invalid.problems[0])
                problems += [at(problem, loaded.id) for problem in invalid.problems]
        self._fleet.file_problems = tuple(problems)
        self._report(map(str, problems), map(str, reading.whole.warnings))
        return sound, problems

    def _report(self, problems: Iterable[str], warnings: Iterable[str]) -> None:
        messages = {**dict.fromkeys(problems, logging.ERROR), **dict.fromkeys(warnings, logging.WARNING)}
        for message, level in messages.items():
            if message not in self._reported:
                log.log(level, "%s", self._shown(message))
        # Only what is wrong now: a problem that was fixed and comes back is reported again.
        self._reported = set(messages)

    def _step(self, loaded: LoadedPipeline, graph: Graph) -> Step | None:
        """The step that a definition requires, None if none."""
        known = self._known.get(loaded.id)
        if known is None:
            return "add"
        member = self._fleet[loaded.id]
        busy = loaded.id in self._working
        if known is loaded and not busy:
            # Not changed, but it may have been unusable for a reason outside of it, such as a duplicate id.
            if not isinstance(member.definition, _NotOpened | _SecretRotated):
                self._clear(loaded.id)
            return None
        changed = diff_definitions(member.graph, graph)
        if not changed and loaded.desired == known.desired and not busy:
            self._known[loaded.id] = loaded
            self._clear(loaded.id)
            return None
        if not member.running:
            return "note"
        return "restart" if changed.restart_reason else "swap" if changed.processors else "note"

    def _flag(self, id: str, problem: Problem) -> None:
        if id in self._known:
            self._fleet[id].definition = problem

    def _clear(self, id: str) -> None:
        member = self._fleet[id]
        if member.definition is not None:
            member.definition = None
            log.info("pipeline %s: its definition has no problems now, and is in effect", id)

    def _set_target(self, id: str, what: tuple[LoadedPipeline, Graph] | None) -> None:
        """Set the target of a pipeline. Its task is started, or takes this up next if it is busy."""
        self._targets[id] = what
        if id not in self._working:
            self._working.add(id)
            # A task for each pipeline: one that takes long to drain must not delay the others.
            self._nursery.start_soon(self._work, id)

    async def _work(self, id: str) -> None:
        try:
            # Only the newest target counts: edits made while it is busy need not be applied one by one.
            while id in self._targets:
                what = self._targets.pop(id)
                try:
                    await (self._remove(id) if what is None else self._change(*what))
                except FleetError as error:
                    # A shutdown or a user was faster, and takes precedence.
                    log.info("pipeline %s was not updated from its file: %s", id, error.message)
                except Exception as error:  # a boundary: an error in one pipeline may not end the server
                    log.exception("pipeline %s cannot be updated from its file", id)
                    self._flag(id, Problem("", describe(error)))
        finally:
            self._working.discard(id)

    async def _remove(self, id: str) -> None:
        log.info("pipeline %s: removed from the files, so it is drained and removed; its positions stay", id)
        await self._fleet.remove(id, asked_by=FILE_RELOAD)
        self._known.pop(id, None)

    async def _change(self, loaded: LoadedPipeline, graph: Graph) -> None:
        id = loaded.id
        known = self._known.get(id)
        if (known is None or known.file != loaded.file) and not await self._claim_file(loaded):
            return
        if known is None:
            await self._add(loaded)
            log.info("pipeline %s: new in %s", id, loaded.file)
            await self._fleet.resume(id, asked_by=FILE_RELOAD)
            return
        self._known[id] = loaded
        member = self._fleet[id]
        # Compared again: since the step was decided, the task may have applied an earlier target.
        changed = diff_definitions(member.graph, graph)
        if not member.running or changed.restart_reason:
            then = ", so it is drained and restarted" if member.running else ""
            self._note(id, f"{changed.restart_reason or 'its definition'} changed{_outside(loaded)}{then}")
            await self._fleet.replace(graph, asked_by=FILE_RELOAD)
        elif changed and not await self._swap(loaded, sorted(changed.processors)):
            return
        member.definition = None
        self._apply_desired_status(known, loaded, bool(changed))

    def _note(self, id: str, text: str) -> None:
        log.info("pipeline %s: %s", id, text)
        self._fleet[id].log.note(text)

    async def _claim_file(self, loaded: LoadedPipeline) -> bool:
        """Claim the state of a pipeline for its file. If that is refused, show why and return False."""
        try:
            if self._claim is not None:
                await self._claim({loaded.id: loaded.file})
        except EnvironmentUnfit as error:
            problem = Problem("id", error.message, error.suggestion, str(loaded.file), loaded.line)
            # Beside the problems of the files: a pipeline that is not there has no other place for it.
            self._fleet.file_problems += (problem,)
            self._report(map(str, self._fleet.file_problems), ())
            return False
        return True

    async def _swap(self, loaded: LoadedPipeline, nodes: list[str]) -> bool:
        try:
            # A processor that hangs in open() would block every later edit of this pipeline.
            with trio.fail_after(OPEN_SECONDS):
                await self._fleet.swap(loaded.graph, nodes)
        except (RunError, trio.TooSlowError) as error:
            self._keep_old(loaded, error)
            return False
        if nodes:
            self._note(loaded.id, f"continues with {', '.join(nodes)} as it is in the file now{_outside(loaded)}")
        return True

    def _keep_old(self, loaded: LoadedPipeline, error: RunError | trio.TooSlowError) -> None:
        problem = _NotOpened("", f"its processors were not ready within {OPEN_SECONDS:g} s", None, str(loaded.file))
        if isinstance(error, RunError):
            nodes = loaded.graph.nodes
            place = nodes[error.node].declared.place if error.node in nodes else None
            spot = place or (str(loaded.file), loaded.line)
            problem = _NotOpened(error.node or "", error.message, error.suggestion, *spot)
        self._flag(loaded.id, problem)
        log.error("pipeline %s continues with its old processors: %s", loaded.id, self._shown(problem.message))

    def _apply_desired_status(self, known: LoadedPipeline, loaded: LoadedPipeline, changed: bool) -> None:
        """Start what failed with the old definition, and follow a change of the status that the file wants."""
        member = self._fleet[loaded.id]
        if loaded.desired == "stopped" != known.desired and member.running:
            self._fleet.stop(loaded.id, asked_by=FILE_RELOAD)
        elif loaded.desired == "running" and not member.running:
            fixed = changed and member.state.status is Status.DEGRADED
            if fixed or known.desired == "stopped":
                self._fleet.start(loaded.id, asked_by=FILE_RELOAD)

    async def _add(self, loaded: LoadedPipeline) -> None:
        """Add a pipeline to the fleet. If its file wants it stopped, it stays stopped until a user starts it."""
        # Only for one that never ran: what a user started since must not be stopped by every restart of the server.
        unseen = (await self._store.state(loaded.id)).status is Status.CREATED
        if loaded.desired == "stopped" and unseen:
            await self._store.save_state(loaded.id, PipelineState(Status.STOPPED, Stopper.USER))
        await self._fleet.add(loaded.graph)
        self._known[loaded.id] = loaded


def _outside(loaded: LoadedPipeline) -> str:
    """Say so if no file was edited: somebody who rotated a secret would look in vain for the change."""
    return "" if loaded.edited else " (its file is the same: a secret or something else that it uses is not)"


_FAILED = {Status.RECOVERING, Status.DEGRADED}
_AT_WORK = {Status.RUNNING, Status.STOPPING}
_USE_NOW = "it is used when the pipeline connects again; at once with `conduit-py pipelines reload`"


class _SecretRotated(Problem):
    """The definition is valid, but a secret that it names was rotated after it was read."""


class _NotOpened(Problem):
    """The definition is valid, but one of its processors could not be opened."""
