"""NodeContext: what every node of a run works with."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from conduit_py.batch import Batch
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.inspect.tap import TapPoint
from conduit_py.record import Record
from conduit_py.stream.commit import CommitStrategy
from conduit_py.stream.ledger import Ledger
from conduit_py.stream.meter import Meter


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts of a run that one node uses. `voters` are the destinations that the node can still reach.

    `ledgers` has one for each source. They are made while nodes are made: read it when a batch comes.
    """

    node: str
    voters: int
    ledgers: Mapping[str, Ledger]
    meter: Meter
    rng: random.Random
    tap_point: TapPoint
    commit: CommitStrategy

    def nack(self, batch: Batch, index: int, record: Record, failure: Failure) -> None:
        """Refuse the message at `index`, whose record now looks like `record`, for every voter of this node."""
        self.meter.refused += 1
        letter = DeadLetter.about(batch, index, record, failure)
        self.ledgers[batch.span.source].nack(batch.span, letter, self.voters)
