"""Home: the destination whose commit is the commit of an exactly-once pipeline."""

from collections.abc import Iterable, Mapping
from typing import Any

from conduit_py.sdk.destination import DestinationConnector, TransactionalDestination


def choose_committing_destination(
    destinations: Mapping[str, DestinationConnector[Any]], others: Iterable[DestinationConnector[Any]] = ()
) -> str | None:
    """The first that can carry the commit without keeping another from writing, if one can do that.

    `others` stage beside them. A home has a transaction open while records come: whoever needs the same lock
    would wait for a commit that waits for him. Then all of them stage.
    """
    everyone = [*destinations.values(), *others]
    for node, connector in destinations.items():
        if isinstance(connector, TransactionalDestination):
            lock = connector.locks
            if lock is None or sum(_lock(each) == lock for each in everyone) == 1:
                return node
    return None


def _lock(connector: DestinationConnector[Any]) -> str | None:
    return connector.locks if isinstance(connector, TransactionalDestination) else None
