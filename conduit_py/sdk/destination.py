"""Destination: where records go."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from enum import Enum
from typing import ClassVar, TypeAlias

import msgspec

from conduit_py.batch import Batch, MessageId
from conduit_py.errors import RecordRefused
from conduit_py.sdk.plugin import Connector, OptionsT

Refusals: TypeAlias = Mapping[int, str | Exception]
"""Index in the batch → why that record was refused. Records not mentioned are accepted."""


class AckMode(Enum):
    """When a record given to `write` counts as durably handled."""

    WRITE = "write"
    """When `write` returns."""
    FLUSH = "flush"
    """When the next `flush` returns; the runtime paces them."""
    LATER = "later"
    """When `answers` says so."""


class Level(Enum):
    """What a destination offers to exactly-once delivery."""

    D0 = "plain"
    D1 = "idempotent by delivery key"
    D2 = "writes in the store's transaction"
    D3 = "stages, then applies"


class Answer(msgspec.Struct, frozen=True):
    """What a destination says later about one message: handled, or refused with a reason."""

    message: MessageId
    refused: str | None = None


class Destination(Connector[OptionsT], ABC):
    """Writes records in the order given and says which are durably handled.

    Calls come in this order, one at a time: `open`, then `write` and `flush`, `finish`, then `teardown`. Only
    `answers` runs beside the others, a sync one in a thread of its own. An exception from `write` means
    that nothing is known about the batch: the whole batch is written again, now if the node has a retry
    policy, else after a restart.
    """

    acks: ClassVar[AckMode] = AckMode.WRITE
    level: ClassVar[Level] = Level.D0

    def open(self) -> Awaitable[None] | None:
        """Get ready to write."""

    @abstractmethod
    def write(self, batch: Batch) -> Awaitable[Refusals | None] | Refusals | None:
        """Write the records of `batch` in order; return the refused ones, or None when there are none.

        The records are shared with other destinations: do not change them.
        """

    def flush(self) -> Awaitable[None] | None:
        """Return when everything written is durable (AckMode.FLUSH), or is on its way (AckMode.LATER)."""

    def finish(self) -> Awaitable[None] | None:
        """Nothing more will be written in this run: do not wait for more (AckMode.LATER only).

        A run that ends with an error, or by force, ends without it.
        """

    def answers(self) -> Awaitable[Sequence[Answer | Batch]] | Sequence[Answer | Batch]:
        """Wait for the next answers, in any order, each message once (AckMode.LATER only).

        A batch in place of an answer says that all of its messages that had no answer yet are handled: that costs
        the same for one message and for thousands.
        """
        raise NotImplementedError(f"{type(self).__qualname__} says AckMode.LATER but has no answers()")


def refusal_text(reason: str | Exception) -> str:
    """The reason as text: tracebacks held for every nack cost more than the work itself."""
    if isinstance(reason, str):
        return reason
    if isinstance(reason, RecordRefused):
        return f"{reason.message} ({reason.suggestion})" if reason.suggestion else reason.message
    return f"{type(reason).__name__}: {reason}"
