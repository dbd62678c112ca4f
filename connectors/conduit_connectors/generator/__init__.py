"""The generator connector: `generator.Source` makes artificial records, the same ones in every run.

`source` has the rate, `shape` the fields and operations of a record.
"""

from conduit_connectors.generator.source import Source

__all__ = ["Source"]
