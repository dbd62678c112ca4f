"""The generator connector: `generator.Source` makes records up, the same ones every time."""

from conduit_connectors.generator.source import Source

__all__ = ["Source"]
