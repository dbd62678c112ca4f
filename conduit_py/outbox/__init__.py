"""Outboxes: messages sent after the commit of the transaction that wrote them, and never without it.

In reading order: `forwarder` (what an outbox is, and what sends its messages, also those that the processors of a
pipeline publish), `sqlalchemy_outbox` (an outbox in the user's own database). The names below are public and imported
on first use, because SQLAlchemy is optional.
"""

from typing import TYPE_CHECKING

from conduit_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from conduit_py.outbox.forwarder import Forwarder, Outbox, TargetFailure
    from conduit_py.outbox.sqlalchemy_outbox import SqlAlchemyOutbox
    from conduit_py.store.tables import OutboxMessage

_HOME = {
    "conduit_py.outbox.forwarder": (
        "Forwarder",
        "Outbox",
        "TargetFailure",
    ),
    "conduit_py.outbox.sqlalchemy_outbox": ("SqlAlchemyOutbox",),
    "conduit_py.store.tables": ("OutboxMessage",),
}

__all__ = [
    "Forwarder",
    "Outbox",
    "OutboxMessage",
    "SqlAlchemyOutbox",
    "TargetFailure",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
