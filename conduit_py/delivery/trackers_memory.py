"""MemoryTracker: messages that were handled, for as long as the process lasts."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from conduit_py.errors import TransientError


class KeyBusy(TransientError):
    """Another transaction, which has not ended, handles the same message; it must be tried again."""

    code = "tracker.busy"


class MemoryTransaction:
    """What belongs together: kept when the block of `MemoryTracker.transaction` ends, dropped when it raises."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()


class MemoryTracker:
    """For tests, and for handlers whose effects do not outlive the process either. Safe in several threads.

    A message that another open transaction handles raises KeyBusy: whether it is a repeat is not known yet.
    With `retention_seconds` keys are forgotten when they are older; choose it longer than a message may be
    delivered again.
    """

    def __init__(self, *, retention_seconds: float | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._retention = retention_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._handled: OrderedDict[bytes, float] = OrderedDict()
        self._open: set[bytes] = set()

    @contextmanager
    def transaction(self) -> Iterator[MemoryTransaction]:
        transaction = MemoryTransaction()
        try:
            yield transaction
        except BaseException:
            with self._lock:
                self._open -= transaction.keys
            raise
        with self._lock:
            self._open -= transaction.keys
            self._handled.update(dict.fromkeys(transaction.keys, self._clock()))

    def once(self, transaction: MemoryTransaction, key: bytes) -> bool:
        with self._lock:
            self._forget()
            if key in self._handled or key in transaction.keys:
                return False
            if key in self._open:
                raise KeyBusy(f"message {key!r} is being handled in another transaction")
            self._open.add(key)
            transaction.keys.add(key)
            return True

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._handled)

    def _forget(self) -> None:
        """Take away what is too old. Keys are in the order of their times."""
        if self._retention is None:
            return
        before = self._clock() - self._retention
        while self._handled and next(iter(self._handled.values())) < before:
            self._handled.popitem(last=False)
