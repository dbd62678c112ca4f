"""NodeContext: the parts of a run that every node uses."""

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
    """The parts of a run that one node uses. `voters` are the destinations that the node can reach.

    `ledgers` has one ledger per source. It is filled while nodes are made, so use it only for a batch.
    """

    node: str
    voters: int
    ledgers: Mapping[str, Ledger]
    meter: Meter
    rng: random.Random
    tap_point: TapPoint
    commit: CommitStrategy

    def nack(self, batch: Batch, index: int, record: Record, failure: Failure) -> None:
        """Cast a nack of every voter of this node for the message at `index`; its dead letter has `record`."""
        self.meter.refused += 1
        letter = DeadLetter.about(batch, index, record, failure)
        self.ledgers[batch.span.source].nack(batch.span, letter, self.voters)
