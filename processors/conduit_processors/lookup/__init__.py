"""Processors that add what a table has about a record: `lookup.file` from a file, `lookup.table` from a database.

In reading order: `file`, `table`, `enrichment` (what both share).
"""

from typing import TYPE_CHECKING, Any

from conduit_processors.lookup.file import File

if TYPE_CHECKING:
    from conduit_processors.lookup.table import Table

__all__ = ["File", "Table"]


def __getattr__(name: str) -> Any:
    # Imported only when it is asked for: a file needs no SQLAlchemy.
    if name != "Table":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conduit_processors.lookup.table import Table

    return Table
