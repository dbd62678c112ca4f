"""TrailKeeper: notes where a source is now and then, in the commits that are made anyhow."""

import time
from collections.abc import Callable

from conduit_py.store.store import Store
from conduit_py.store.trail import Point, Trail


class TrailKeeper:
    """Says which trail is to be saved with a position: with the first where the run began, then one a minute."""

    def __init__(self, store: Store, pipeline: str, source: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pipeline = pipeline
        self._source = source
        self._clock = clock
        self._began_at = clock()
        self._trail: Trail | None = None

    async def trails(self, position: bytes) -> dict[str, Trail]:
        """What goes with the commit of this position; mostly nothing."""
        now = self._clock()
        here = Point(now, position)
        if self._trail is None:
            before = (await self._store.positions(self._pipeline)).get(self._source)
            trail = await self._store.trail(self._pipeline, self._source)
            self._trail = trail.joined(Point(min(self._began_at, now), before, start=True), here)
        elif self._trail.due(now):
            self._trail = self._trail.joined(here)
        else:
            return {}
        return {self._source: self._trail}
