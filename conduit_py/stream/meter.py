"""Meter: what a node has done and what it waits for; the numbers behind progress, metrics and the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import msgspec

NodeKind: TypeAlias = Literal["source", "processor", "destination", "dead_letters"]


class Meter(msgspec.Struct):
    """Plain counters, touched once per batch, and what the node's tasks wait for."""

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
    waits: list[str] = []

    @property
    def waiting_on(self) -> str | None:
        """What blocks the node at this moment: of several tasks of one node, the last that began to wait."""
        return self.waits[-1] if self.waits else None

    @contextmanager
    def waiting(self, reason: str) -> Iterator[None]:
        """Say what a task of the node waits for while the block runs."""
        self.waits.append(reason)
        try:
            yield
        finally:
            self.waits.remove(reason)


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
