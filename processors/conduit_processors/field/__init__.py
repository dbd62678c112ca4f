"""Processors that change single fields of a record: `convert`, `exclude`, `rename`, `set`.

`conversion` has the rules of Convert.
"""

from conduit_processors.field.convert import Convert
from conduit_processors.field.exclude import Exclude
from conduit_processors.field.rename import Rename
from conduit_processors.field.set import Set

__all__ = ["Convert", "Exclude", "Rename", "Set"]
