"""Which commit strategy each delivery guarantee has.

A new guarantee is a strategy, a row here and one in `graph/guarantees.py`.
"""

from collections.abc import Callable, Mapping

from conduit_py.exactly_once.commit_together import CommitTogether
from conduit_py.exactly_once.isolation import Isolation
from conduit_py.pipeline_settings import Delivery
from conduit_py.stream.commit import CommitEach, CommitFirst, CommitSeries, CommitStrategy, IndependentRuns

STRATEGIES: Mapping[Delivery, tuple[type[CommitStrategy], Callable[[], CommitSeries]]] = {
    "at_least_once": (CommitEach, lambda: IndependentRuns(CommitEach)),
    "at_most_once": (CommitFirst, lambda: IndependentRuns(CommitFirst)),
    "exactly_once": (CommitTogether, Isolation),
}


def commit_series(delivery: Delivery) -> CommitSeries:
    """What makes the commit strategies of a pipeline with this guarantee."""
    return STRATEGIES[delivery][1]()


def channel_size(delivery: Delivery) -> int:
    """How many batches may wait on an edge of such a pipeline."""
    return STRATEGIES[delivery][0].channel_size
