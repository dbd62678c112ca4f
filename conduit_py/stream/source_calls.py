"""How sources are called that take requests or have a limit; all others are called by a plain PluginCaller.

SnapshotRequests passes requests for snapshots to a source of a run, and finds out when they survive a crash.
LimitedReads reads no more than the rate limit of a source allows.
"""

from collections.abc import Sequence
from typing import Any

import trio

from conduit_py.errors import ConduitError, PipelineIdle, describe
from conduit_py.payloads import estimated_bytes
from conduit_py.pipeline_settings import RateLimit
from conduit_py.sdk.source import NothingYet, Reading, SnapshotRefused, SnapshotRequest, SourceConnector
from conduit_py.stream.plugin_calls import PluginCaller, check_reading
from conduit_py.stream.signal import Throttle
from conduit_py.user_errors import as_error

TAKE_SECONDS = 20.0
"""How long a source may take to decide about a request. A client of the server waits for its answer longer."""


class SnapshotRequests:
    """The requests to one source in one run.

    A request is durable when the source gets an ack of a reading that it returned after it took the request:
    everything before such an ack is in the store (invariant 2), and the position of the reading has the request.
    """

    def __init__(self, node: str, source: SourceConnector[Any]) -> None:
        self._node = node
        self._source = source
        self._turn = trio.Lock()
        self._waiting: list[tuple[set[bytes], trio.Event]] = []
        self.open = False
        """True while the source can be read."""

    async def request(self, request: SnapshotRequest) -> trio.Event:
        """Have the source take a request; return the event of its durability. Raises SnapshotRefused, PipelineIdle."""
        with trio.move_on_after(TAKE_SECONDS):
            async with self._turn:
                if not self.open:
                    raise PipelineIdle(
                        f"{self._node} is not open: the pipeline is starting or ending",
                        suggestion="request the snapshot again when the pipeline runs",
                    )
                await self._ask(request)
                durable = trio.Event()
                # No await since the source took it: the next reading must not be missed.
                self._waiting.append((set(), durable))
                return durable
        raise SnapshotRefused(
            f"{self._node} did not take the request within {TAKE_SECONDS:g} s",
            suggestion="check that its system answers, and request the snapshot again",
        )

    async def _ask(self, request: SnapshotRequest) -> None:
        try:
            await self._source.request_snapshot(request)
        except SnapshotRefused:
            raise
        except BaseException as raised:  # plugin boundary: an error of a request must not end the run
            error = as_error(raised)
            advice = error.suggestion if isinstance(error, ConduitError) else None
            raise SnapshotRefused(
                f"{self._node} failed to take the request: {describe(error)}", suggestion=advice
            ) from error

    def note_reading(self, returned: Any, n: int) -> None:
        """Note the last position of what `read(n)` returned."""
        if not self._waiting:
            return
        reading = check_reading(self._node, returned, n)
        position = reading.records[-1].position if reading.position is None else reading.position
        for positions, _ in self._waiting:
            positions.add(position)

    def note_ack(self, acked: Sequence[bytes]) -> None:
        """Set the events of the requests that these positions have."""
        for each in list(self._waiting):
            positions, durable = each
            if not positions.isdisjoint(acked):
                durable.set()
                self._waiting.remove(each)


class RequestableCaller(PluginCaller):
    """Calls a source that takes requests for snapshots, and reports its readings and acks to them."""

    def __init__(self, name: str, source: SourceConnector[Any], requests: SnapshotRequests) -> None:
        super().__init__(name, source)
        self._requests = requests

    async def __call__(self, name: str, *args: Any) -> Any:
        if name in ("read", "teardown"):
            self._requests.open = name == "read"
        result = await super().__call__(name, *args)
        if name == "read":
            self._requests.note_reading(result, *args)
        elif name == "ack":
            self._requests.note_ack(*args)
        return result

    def inherits(self, name: str) -> bool:
        # The runtime does not ack to a source without `ack`, but the ack is what shows that a request is durable.
        return name != "ack" and super().inherits(name)


SLICE_SECONDS = 0.1
"""Of a source with a limit, as much is read at once as may be read in so long a time: records flow evenly."""


class LimitedReads(PluginCaller):
    """Calls a source with a limit. A source without one never passes here."""

    def __init__(self, rate: RateLimit, *args: Any) -> None:
        super().__init__(*args)
        self._throttle = Throttle(rate)
        self.quick = frozenset()

    async def __call__(self, name: str, *args: Any) -> Any:
        if name != "read":
            return await super().__call__(name, *args)
        if (seconds := self._throttle.wait_seconds) > 0:
            await trio.sleep(min(seconds, SLICE_SECONDS))
        if seconds > SLICE_SECONDS:
            # The reader asks again, unless it is stopped meanwhile: a stop does not wait for the limit.
            raise NothingYet
        reading = await super().__call__(name, min(args[0], self._throttle.most(SLICE_SECONDS)))
        records = reading.records if isinstance(reading, Reading) else reading
        self._throttle.count(len(records), estimated_bytes(records, sample_size=8) if len(records) else 0)
        return reading


class LimitedSnapshots(LimitedReads, RequestableCaller):
    """The same for a source that takes requests for snapshots."""
