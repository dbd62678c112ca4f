"""Positions that are a number: of a line, of an item of a list, of a generated record."""

from collections.abc import Sequence

from conduit_py.sdk import Positions, foreign_position


def positions_of(connector: str, numbers: Sequence[int]) -> Positions:
    """Return the positions for these numbers, in the format of version 1."""
    return Positions(f"{connector}:1:%d".encode(), numbers)


def number_of(connector: str, position: bytes) -> int:
    """Return the number in a position. Raises FatalError for a position of another connector."""
    prefix = f"{connector}:1:".encode()
    digits = position.removeprefix(prefix)
    # 18 digits fit into 64 bits, which is all that SQLite can take.
    if digits == position or not digits.isdigit() or len(digits) > 18:
        raise foreign_position(position, f"the {connector} source")
    return int(digits)
