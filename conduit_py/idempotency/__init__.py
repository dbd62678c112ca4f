"""Idempotency: handle each message once, in a pipeline or in an application with its own transactions.

In reading order: `tracker` (what a tracker guarantees, in memory and in our store; commit, then ack),
`sqlalchemy_tracker` (in the user's database), `processor` (in a pipeline). The names below are public and imported on
first use, because SQLAlchemy is optional.
"""

from typing import TYPE_CHECKING

from conduit_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from conduit_py.idempotency.processor import Idempotency, RecentKeys, SeenKeys
    from conduit_py.idempotency.sqlalchemy_tracker import SqlAlchemyTracker
    from conduit_py.idempotency.tracker import (
        REPEATED,
        AsyncMessageTracker,
        KeyBusy,
        MemoryTracker,
        MessageContext,
        MessageTracker,
        StoreTracker,
        StoreTransaction,
        handle_once,
        handle_once_async,
        store_transaction,
    )
    from conduit_py.store.store import open_store

_HOME = {
    "conduit_py.idempotency.processor": (
        "Idempotency",
        "RecentKeys",
        "SeenKeys",
    ),
    "conduit_py.idempotency.sqlalchemy_tracker": ("SqlAlchemyTracker",),
    "conduit_py.idempotency.tracker": (
        "REPEATED",
        "AsyncMessageTracker",
        "KeyBusy",
        "MemoryTracker",
        "MessageContext",
        "MessageTracker",
        "StoreTracker",
        "StoreTransaction",
        "handle_once",
        "handle_once_async",
        "store_transaction",
    ),
    "conduit_py.store.store": ("open_store",),
}

__all__ = [
    "REPEATED",
    "AsyncMessageTracker",
    "Idempotency",
    "KeyBusy",
    "MemoryTracker",
    "MessageContext",
    "MessageTracker",
    "RecentKeys",
    "SeenKeys",
    "SqlAlchemyTracker",
    "StoreTracker",
    "StoreTransaction",
    "handle_once",
    "handle_once_async",
    "open_store",
    "store_transaction",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
