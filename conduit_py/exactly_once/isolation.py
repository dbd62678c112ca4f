"""Isolation: finds the record that makes its whole transaction fail, so that it fails alone."""

from conduit_py.errors import (
    CannotDefer,
    DeadLetterFailed,
    FatalError,
    Fenced,
    NackNotAllowed,
    NodeFailed,
    RunError,
    StopTimedOut,
)
from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.graph.node import Graph
from conduit_py.store.store import Store

PARTS = 16
_NOT_ABOUT_A_RECORD = (Fenced, StopTimedOut, DeadLetterFailed, CannotDefer)


class Isolation:
    """Decides how the next run of an exactly-once pipeline begins after a failed run.

    A transaction that failed in a processor or destination is repeated at once, in transactions of a sixteenth of its
    records. That goes on down to one record. Everything before the failing record is then committed, and the last error
    is about that record alone: it is dead-lettered, or the error names it. A transient error is about no record.
    """

    def __init__(self) -> None:
        self._records = 0
        """The number of records that the next run commits in small transactions."""
        self._size = 1
        """The number of records in each of these."""
        self._graph: Graph
        self._commit: CommitTogether

    def next(self, graph: Graph, store: Store) -> CommitTogether:
        self._graph = graph
        self._commit = CommitTogether(graph, store, isolated=self._records, size=self._size)
        return self._commit

    def retries_at_once(self, error: RunError | None) -> bool:
        uncommitted = self._commit.uncommitted
        # I15: the run has ended, and only recovery continues it. Neither a single record nor the group of an atomic
        # source can be divided further.
        undivided = uncommitted <= 1 or self._commit.one_group
        several = not undivided and error is not None and self._may_be_about_a_record(error)
        self._records = uncommitted if several else self._commit.isolated
        self._size = max(1, uncommitted // PARTS)
        return several

    def _may_be_about_a_record(self, error: RunError) -> bool:
        if isinstance(error, _NOT_ABOUT_A_RECORD) or error.node in {source.id for source in self._graph.sources}:
            return False
        if isinstance(error, NackNotAllowed):
            # With any other policy the nack window was exceeded, and a new run would start with an empty window.
            return self._graph.pipeline.dead_letters.policy.stops
        return isinstance(error, NodeFailed | FatalError)
