"""RunOutcome: how a pipeline ended, what it did, and the dead letters that it keeps."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from conduit_py.dead_letter_policy import DeadLetterPolicy
from conduit_py.errors import ConduitError, DeadLettersFound
from conduit_py.record import Record
from conduit_py.status import Status
from conduit_py.store.store import Store
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.stream.meter import NodeKind, Progress

KEPT_MAX = 1000
"""The most dead letters in an outcome: a pipeline may keep more than fit into memory."""


class NodeCounts(msgspec.Struct, frozen=True):
    """What one node of a pipeline did."""

    kind: NodeKind
    records: int
    """Read by a source, processed by a processor, accepted by a destination, stored as dead letters."""
    filtered: int
    refused: int
    retries: int


class RunCounts(msgspec.Struct, frozen=True):
    """What a pipeline did since it was started, restarts after errors included."""

    read: int
    acked: int
    """Records that are done with: delivered, filtered or dead-lettered."""
    filtered: int
    dead_letters: int
    recoveries: int
    """How often the pipeline was started again after an error."""
    elapsed_seconds: float
    nodes: Mapping[str, NodeCounts]
    unwanted: int = 0
    """Records that the conditions of all destinations refused. They are acked, and nobody has them."""


class KeptDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter in the state of a pipeline: the record as the first node that refused it saw it."""

    id: str
    source: str
    node: str
    error: str
    record: Record


class RunOutcome(msgspec.Struct, frozen=True):
    """How a pipeline ended: `status` is COMPLETED, STOPPED, or DEGRADED if it failed for good."""

    pipeline: str
    status: Status
    counts: RunCounts
    dead_letters: Sequence[KeptDeadLetter] = ()
    """The letters that `DeadLetters.keep()` has kept for this pipeline, newest first, at most 1000."""
    error: ConduitError | None = None
    """Why it failed, or could not be stopped gracefully."""
    warning: str | None = None
    """How many records were refused, the most frequent cause, and where the dead letters are; None without any."""

    @property
    def ok(self) -> bool:
        """True if the pipeline completed, or was stopped gracefully."""
        return self.error is None

    def raise_for_error(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error

    def raise_for_dead_letters(self) -> None:
        """Raise `error` if there is one, else DeadLettersFound if any record was refused."""
        self.raise_for_error()
        if self.warning is not None:
            raise DeadLettersFound(f"{self.pipeline}: {self.warning}")


def count_progress(progress: Progress) -> RunCounts:
    """Return the counts of a pipeline's progress."""
    nodes = {
        meter.node: NodeCounts(meter.kind, meter.records, meter.filtered, meter.refused, meter.retries)
        for meter in progress.nodes
    }
    return RunCounts(
        read=progress.read,
        acked=progress.acked,
        filtered=progress.filtered,
        dead_letters=progress.dead_letters,
        recoveries=progress.recoveries,
        elapsed_seconds=progress.elapsed_seconds,
        nodes=nodes,
        unwanted=progress.unwanted,
    )


def summarize_dead_letters(progress: Progress, policy: DeadLetterPolicy) -> str | None:
    """Return a sentence with the number of dead letters, their most frequent cause and where they are; None without."""
    causes = list_causes(progress)
    if not progress.dead_letters or not causes:
        return None
    cause, count = causes[0]
    letters = f"{progress.dead_letters:,} dead letter" + ("" if progress.dead_letters == 1 else "s")
    often = "" if len(causes) == 1 else f" ({count:,} of them)"
    locations = [found for meter in progress.nodes if (found := meter.cause_locations.get(cause))]
    see = f", see {locations[0]}" if locations else ""
    return f"{letters} of {progress.read:,} records read: {cause}{often}{see}; {policy.whereabouts}"


def list_causes(progress: Progress, limit: int = 5) -> list[tuple[str, int]]:
    """Return the most frequent causes of dead letters, with how many letters have each."""
    counts = Counter({cause: count for meter in progress.nodes for cause, count in meter.causes.items()})
    return counts.most_common(limit)


async def list_kept_letters(store: Store, pipeline: str) -> list[KeptDeadLetter]:
    """Return the newest dead letters in the state of a pipeline."""
    page = await store.letters.page(LetterFilter(pipeline=pipeline), limit=KEPT_MAX)
    kept = []
    for summary in page.letters:
        letter = await store.letters.letter(summary.id)
        kept.append(KeptDeadLetter(letter.id, letter.source, letter.node, letter.error, letter.record))
    return kept
