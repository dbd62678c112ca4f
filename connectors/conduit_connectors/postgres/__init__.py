"""The PostgreSQL connector: writes records as rows of tables."""

from conduit_connectors.postgres.destination import Destination

__all__ = ["Destination"]
