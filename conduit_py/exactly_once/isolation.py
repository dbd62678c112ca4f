"""Isolation: how a record that fails its whole transaction is found, so that it fails alone."""

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
    """Decides how the next run of an exactly-once pipeline begins after one that failed.

    The rule: a transaction that failed in a processor or destination is tried again at once in transactions of a
    sixteenth of its records, and so on down to one record. So everything before the culprit is committed,
    and the last error is about that record alone: it is dead-lettered, or the error names it. An error
    that its connector calls transient is about no record.
    """

    def __init__(self) -> None:
        self._records = 0
        """How many records the next run takes in small transactions."""
        self._size = 1
        """How many of them in each."""
        self._graph: Graph
        self._commit: CommitTogether

    def next(self, graph: Graph, store: Store) -> CommitTogether:
        self._graph = graph
        self._commit = CommitTogether(graph, store, isolated=self._records, size=self._size)
        return self._commit

    def retries_at_once(self, error: RunError | None) -> bool:
        uncommitted = self._commit.uncommitted
        several = uncommitted > 1 and error is not None and self._may_be_about_a_record(error)
        self._records = uncommitted if several else self._commit.isolated
        self._size = max(1, uncommitted // PARTS)
        return several

    def _may_be_about_a_record(self, error: RunError) -> bool:
        if isinstance(error, _NOT_ABOUT_A_RECORD) or error.node in {source.id for source in self._graph.sources}:
            return False
        if isinstance(error, NackNotAllowed):
            # With any other handler there were too many of them: trying again would begin to count anew.
            return self._graph.pipeline.dead_letters.policy.stops
        return isinstance(error, NodeFailed | FatalError)
