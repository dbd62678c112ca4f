"""Cooldown: at most one call per key and period, in bounded memory."""

from collections import OrderedDict


class Cooldown:
    """Remembers when a key may be used again. When it is full of keys that still cool down it grows."""

    def __init__(self, size_max: int = 1024) -> None:
        self._size_max = size_max
        self._until: OrderedDict[str, float] = OrderedDict()

    def ready(self, key: str, now: float, seconds: float) -> bool:
        """Whether the key may be used now; if so, not again for that long."""
        if self._until.get(key, now) > now:
            return False
        self._until.pop(key, None)
        if len(self._until) >= self._size_max:
            self._make_room(now)
        self._until[key] = now + seconds
        return True

    def __len__(self) -> int:
        return len(self._until)

    def _make_room(self, now: float) -> None:
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key]
        if len(self._until) >= self._size_max:
            self._size_max *= 2
