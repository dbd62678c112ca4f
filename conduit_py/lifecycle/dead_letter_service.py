"""DeadLetterService: replay, edit and discard the dead letters of a fleet."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

import msgspec
import trio

from conduit_py.dead_letter_policy import KeepPolicy
from conduit_py.defaults import LETTERS_PAGE_MAX
from conduit_py.errors import LetterUnclear, LetterUnknown
from conduit_py.graph.node import Graph
from conduit_py.record import Record
from conduit_py.store.dead_letter_store import DeadLetterStore
from conduit_py.store.stored_letter import LetterFilter, LetterState, LetterSummary, NumberedLetter, StoredLetter
from conduit_py.stream.plugin_calls import locate_record

log = logging.getLogger("conduit_py.dead_letters")

_READ_TOGETHER = 200


class LetterPipeline(Protocol):
    """The part of a fleet's member that the service uses."""

    @property
    def graph(self) -> Graph: ...

    @property
    def running(self) -> bool: ...


class LetterReplay(msgspec.Struct, frozen=True):
    """A letter that is replayed, and the nodes at which it enters."""

    id: str
    pipeline: str
    nodes: list[str]


class ReplayObstacle(msgspec.Struct, frozen=True):
    """A letter that cannot be replayed now, and why."""

    id: str
    reason: str


class ReplayReport(msgspec.Struct):
    """What a replay did, or would do. The lists have the first thousand letters; the numbers count all."""

    queued: int = 0
    already_queued: int = 0
    impossible: int = 0
    not_found: list[str] = []
    letters: list[LetterReplay] = []
    obstacles: list[ReplayObstacle] = []
    notes: list[str] = []


class DeadLetterService:
    """Works on the stored letters, with the pipelines that are loaded."""

    def __init__(self, store: DeadLetterStore, pipelines: Callable[[], dict[str, LetterPipeline]]) -> None:
        self.store = store
        self._pipelines = pipelines

    async def replay(
        self, filter: LetterFilter, *, destinations: Collection[str] | None = None, dry_run: bool = False
    ) -> ReplayReport:
        """Queue the letters that match, oldest first; only for these destinations, if any are named.

        A letter that is queued already, or cannot be replayed, stays as it is. A dry run changes nothing.
        """
        report = ReplayReport()
        found = await self._summaries(filter)
        report.not_found = sorted(set(filter.ids or ()) - {summary.id for summary in found})
        replays = list(self._replays(found, destinations, report))
        # The list is complete before anything is queued: a dry run and a real one must report the same.
        report.notes = self._notes(replays, found)
        report.letters = replays[:LETTERS_PAGE_MAX]
        report.queued = len(replays) if dry_run else await self._queue(replays, report)
        return report

    async def select(
        self, filter: LetterFilter, fits: Callable[[Record], bool], limiter: trio.CapacityLimiter
    ) -> LetterFilter:
        """Return a filter for those of the letters that match now for which one of their records fits."""
        ids: list[str] = []
        before: int | None = None
        # In steps: the store does other work between them, and only so many records are in memory.
        while letters := await self.store.read(filter, before, _READ_TOGETHER):
            before = letters[-1].number
            # In a thread: a condition may take long, and the loop runs all pipelines.
            search = partial(_find_fitting, letters, fits)
            ids += await trio.to_thread.run_sync(search, abandon_on_cancel=True, limiter=limiter)
        return msgspec.structs.replace(filter, ids=tuple(ids))

    async def locate(self, letter: StoredLetter) -> str | None:
        """Return where its source has the record of a letter, for people; None if that is not known."""
        pipeline = self._pipelines().get(letter.pipeline)
        sources = [] if pipeline is None else pipeline.graph.pipeline.sources
        connector = next((each.connector for each in sources if each.id == letter.source), None)
        return None if connector is None else await locate_record(connector, letter.position)

    async def discard(self, filter: LetterFilter, *, dry_run: bool = False) -> int:
        """Delete the letters that match. Returns how many, also in a dry run."""
        if dry_run:
            return (await self.store.page(filter, limit=1)).total
        return await self.store.discard(filter)

    async def edit(self, id: str, revise: Callable[[Record], Record], node: str | None = None) -> StoredLetter:
        """Replace the record of a letter. A letter with different records at several nodes needs a `node`."""
        letter = await self.store.letter(id)
        if node is not None and node not in letter.records:
            raise LetterUnknown(f"{node} does not refuse dead letter {id!r}", suggestion=_choose(letter))
        # Branches may have changed the record differently, so one edit need not fit all of them.
        first = letter.record
        if node is None and any(record != first for record in letter.records.values()):
            raise LetterUnclear(f"dead letter {id!r} has another record at each node", suggestion=_choose(letter))
        nodes = list(letter.records) if node is None else [node]
        return await self.store.edit(id, {each: revise(letter.records[each]) for each in nodes})

    async def forget_old(self) -> None:
        """Delete the letters that are older or more than the retention of their pipeline allows."""
        for id, member in self._pipelines().items():
            policy = member.graph.pipeline.dead_letters.policy
            if not isinstance(policy, KeepPolicy):
                continue
            retention = policy.retention
            if retention.age or retention.count_max:
                removed = await self.store.retain(id, retention.since(time.time()), retention.count_max)
                if removed:
                    log.warning("%s: deleted %d dead letters, as its retention says", id, removed)

    async def _summaries(self, filter: LetterFilter) -> list[LetterSummary]:
        """All that match, oldest first."""
        found: list[LetterSummary] = []
        page = await self.store.page(filter, limit=LETTERS_PAGE_MAX)
        found += page.letters
        while page.next is not None:
            page = await self.store.page(filter, page.next, LETTERS_PAGE_MAX)
            found += page.letters
        # Pages come newest first, and a replay must keep the order of the records.
        return found[::-1]

    def _replays(
        self, found: Sequence[LetterSummary], destinations: Collection[str] | None, report: ReplayReport
    ) -> Iterator[LetterReplay]:
        pipelines = self._pipelines()
        for summary in found:
            if summary.state is LetterState.QUEUED:
                report.already_queued += 1
                continue
            owner = pipelines.get(summary.pipeline)
            nodes, reason = _entry_nodes(summary, owner.graph if owner else None, destinations)
            if nodes:
                yield LetterReplay(summary.id, summary.pipeline, nodes)
                continue
            report.impossible += 1
            if len(report.obstacles) < LETTERS_PAGE_MAX:
                report.obstacles.append(ReplayObstacle(summary.id, reason))

    async def _queue(self, replays: Sequence[LetterReplay], report: ReplayReport) -> int:
        queued = 0
        for pipeline in dict.fromkeys(replay.pipeline for replay in replays):
            mine = iter([replay for replay in replays if replay.pipeline == pipeline])
            while some := list(islice(mine, LETTERS_PAGE_MAX)):
                queued += len(await self.store.queue(pipeline, {each.id: each.nodes for each in some}))
        # Another request may have queued some of them meanwhile.
        report.already_queued += len(replays) - queued
        return queued

    def _notes(self, replays: Sequence[LetterReplay], found: Sequence[LetterSummary]) -> list[str]:
        pipelines = self._pipelines()
        notes = [
            f"{pipeline} is not running: its letters are sent when it is started"
            for pipeline in dict.fromkeys(replay.pipeline for replay in replays)
            if not pipelines[pipeline].running
        ]
        chosen = {replay.id for replay in replays}
        unread = sum(each.id in chosen and each.node == each.source and not each.edited for each in found)
        if unread:
            notes.append(f"{unread} were refused by their source and enter behind it unchanged: edit them first")
        return notes


def _find_fitting(letters: Sequence[NumberedLetter], fits: Callable[[Record], bool]) -> list[str]:
    return [each.letter.id for each in letters if any(map(fits, each.letter.records.values()))]


def _entry_nodes(
    summary: LetterSummary, graph: Graph | None, destinations: Collection[str] | None
) -> tuple[list[str], str]:
    """The nodes at which a letter enters, or none and the reason."""
    if graph is None:
        return [], f"there is no pipeline {summary.pipeline!r} here"
    if not graph.pipeline.dead_letters.policy.keeps:
        return [], f"{summary.pipeline} no longer keeps its letters: only the handler journal sends them again"
    present = [node for node in summary.nodes if node in graph.nodes]
    if not present:
        return [], f"{', '.join(summary.nodes)} is no longer in the pipeline"
    if destinations is None:
        return present, ""
    chosen = [node for node in present if _behind(graph, node) <= set(destinations)]
    return chosen, "" if chosen else f"it was refused by {', '.join(present)}, not on the way to these destinations"


def _behind(graph: Graph, node: str) -> set[str]:
    votes = graph.votes(node)
    return {each.id for each in graph.destinations if votes & graph.votes(each.id)}


def _choose(letter: StoredLetter) -> str:
    return f"name one of {', '.join(letter.records)}"
