"""Positions that are a number: of a line, of an item of a list, of a generated record; and errors of foreign ones."""

from collections.abc import Sequence

from conduit_py.sdk import FatalError, Positions


def positions_of(connector: str, numbers: Sequence[int]) -> Positions:
    """Return the positions for these numbers, in the format of version 1."""
    return Positions(f"{connector}:1:%d".encode(), numbers)


def number_of(connector: str, position: bytes) -> int:
    """Return the number in a position. Raises FatalError for a position of another connector."""
    prefix = f"{connector}:1:".encode()
    digits = position.removeprefix(prefix)
    # 18 digits fit into 64 bits, which is all that SQLite can take.
    if digits == position or not digits.isdigit() or len(digits) > 18:
        raise foreign_position(connector, position)
    return int(digits)


def foreign_position(connector: str, position: bytes) -> FatalError:
    """Return the error for a position that this connector did not make."""
    return FatalError(
        f"{position[:100]!r} is not a position of the {connector} source",
        suggestion="this source id had another connector before: give the source a new id to start afresh",
    )


def unreadable_position(position: bytes, error: Exception) -> FatalError:
    """Return the error for a position that a source with places of several parts cannot read."""
    return FatalError(
        f"the position {position[:200]!r} is not one of this source: {error}",
        suggestion="reset the position of the source to start again",
    )
