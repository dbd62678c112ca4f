"""`schema.validate`: records that drift from their schema stop the pipeline, are refused, pass, or change it.

In reading order: `validate`, `shape` (the schema as values are checked by it), `quick_check` (most values, fast).
"""

from conduit_processors.schema.validate import Validate

__all__ = ["Validate"]
