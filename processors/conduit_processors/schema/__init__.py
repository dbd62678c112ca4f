"""`schema.validate`: records that drift from their schema stop the pipeline, are refused, pass, or change it."""

from conduit_processors.schema.validate import Validate

__all__ = ["Validate"]
