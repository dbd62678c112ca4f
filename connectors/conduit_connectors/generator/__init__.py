"""The generator connector: `generator.Source` makes artificial records, the same ones in every run."""

from conduit_connectors.generator.source import Source

__all__ = ["Source"]
