"""Tally: what a source over a leased queue has counted in this run."""

from dataclasses import dataclass


@dataclass
class Tally:
    """`held` is how many leases are kept just now; the others only grow."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    taken_over: int = 0
    """Pieces of work that somebody else had begun and left."""
    duplicates: int = 0
    """Messages that were delivered though their work was done, or begun, already."""
    unreadable: int = 0
    failed: int = 0
    """Objects that could not be opened or read."""
