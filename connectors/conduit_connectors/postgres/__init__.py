"""The PostgreSQL connector: rows into tables."""

from conduit_connectors.postgres.destination import Destination

__all__ = ["Destination"]
