"""Meter: what a node has done and what it waits for; the numbers behind progress, metrics and the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import msgspec

NodeKind: TypeAlias = Literal["source", "processor", "destination", "dead_letters"]


class Meter(msgspec.Struct):
    """Plain counters, touched once per batch. `waiting_on` says what blocks the node at this moment."""

    node: str
    kind: NodeKind
    records: int = 0
    """Read (source), processed (processor), accepted (destination), stored (dead_letters)."""
    batches: int = 0
    filtered: int = 0
    refused: int = 0
    acked: int = 0
    """Positions acked to the source, dead letters included."""
    retries: int = 0
    in_flight: int = 0
    window: int = 0
    waiting_on: str | None = None

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Say what the node waits for while the block runs."""
        self.waiting_on = reason
        try:
            yield
        finally:
            self.waiting_on = None


class Progress(msgspec.Struct, frozen=True):
    """One look at a running pipeline: totals over its nodes, and the nodes themselves."""

    pipeline: str
    status: str
    elapsed_seconds: float
    read: int
    acked: int
    filtered: int
    dead_letters: int
    in_flight: int
    blocked_on: str | None
    nodes: list[Meter]
