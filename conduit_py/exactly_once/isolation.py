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
from conduit_py.exactly_once.transaction_loop import ExactlyOnce
from conduit_py.graph.node import Graph

PARTS = 16
_NOT_ABOUT_A_RECORD = (Fenced, StopTimedOut, DeadLetterFailed, CannotDefer)


class Isolation:
    """Decides how the next run of an exactly-once pipeline begins after one that failed.

    The rule: a transaction that failed in a processor or destination is tried again at once in transactions of a
    sixteenth of its records, and so on down to one record. So everything before the culprit is committed,
    and what is said in the end is about that record alone: it is dead-lettered, or the error names it. An error
    that its connector calls transient is about no record.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.records = 0
        """How many records the next run takes in small transactions."""
        self.size = 1
        """How many of them in each."""

    def after(self, transactions: ExactlyOnce, error: RunError | None) -> bool:
        """Note how a run ended; True if the next is to start at once, because this error is not the last word."""
        several = transactions.uncommitted > 1 and error is not None and self._may_be_about_a_record(error)
        self.records = transactions.uncommitted if several else transactions.isolated
        self.size = max(1, transactions.uncommitted // PARTS)
        return several

    def _may_be_about_a_record(self, error: RunError) -> bool:
        if isinstance(error, _NOT_ABOUT_A_RECORD) or error.node in {source.id for source in self._graph.sources}:
            return False
        if isinstance(error, NackNotAllowed):
            # With any other handler there were too many of them: trying again would begin to count anew.
            return self._graph.pipeline.dead_letters.handler == "stop"
        return isinstance(error, NodeFailed | FatalError)
