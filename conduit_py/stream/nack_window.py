"""NackWindow: how many of the latest outcomes of a source may be nacks."""

from collections import deque


class NackWindow:
    """Of the last `size` outcomes at most `threshold` may be nacks; size 0 allows every nack.

    The first nack too many is refused and freezes the window: from then on every nack is refused and
    acks no longer make room.
    """

    def __init__(self, size: int, threshold: int) -> None:
        # With a threshold of 0 the very next nack trips it, however long the window is.
        self._size = min(size, 1) if threshold == 0 else size
        self._threshold = threshold
        self._outcomes = 0
        self._nacks: deque[int] = deque()
        self._frozen = False

    def ack(self, count: int = 1) -> None:
        if not self._frozen:
            self._outcomes += count

    def nack(self) -> bool:
        """Whether this nack is allowed."""
        if self._size == 0:
            return True
        if self._frozen:
            return False
        self._outcomes += 1
        self._nacks.append(self._outcomes)
        while self._nacks[0] <= self._outcomes - self._size:
            self._nacks.popleft()
        self._frozen = len(self._nacks) > self._threshold
        return not self._frozen
