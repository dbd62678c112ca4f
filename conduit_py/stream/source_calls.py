"""What sources have that do more than return records: all others have a plain PluginCaller and nothing else.

SnapshotRequests passes requests for snapshots to a source of a run, and finds out when they survive a crash.
LimitedReads reads no more than the rate limit of a source allows. ShardTracker stores the progress of a source that
shares its work with other runs.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import trio

from conduit_py.errors import ConduitError, PipelineIdle, describe
from conduit_py.payloads import estimated_bytes
from conduit_py.pipeline_settings import RateLimit
from conduit_py.sdk.source import (
    NothingYet,
    Reading,
    SharedShard,
    SharedSource,
    SnapshotRefused,
    SnapshotRequest,
    SourceConnector,
)
from conduit_py.store.claim import ShardChange
from conduit_py.store.tables import Shards
from conduit_py.stream.plugin_calls import PluginCaller, check_reading
from conduit_py.stream.signal import Throttle
from conduit_py.user_errors import as_error

log = logging.getLogger("conduit_py")

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


def source_callers(
    node: str, source: SourceConnector[Any], rate: RateLimit | None
) -> tuple[PluginCaller, PluginCaller, SnapshotRequests | None]:
    """Make the callers of a source for everything but acks, and for acks; with its requests, if it takes any."""
    if type(source).request_snapshot is SourceConnector.request_snapshot:
        plain = PluginCaller(node, source) if rate is None else LimitedReads(rate, node, source)
        return plain, PluginCaller(f"{node}-ack", source), None
    requests = SnapshotRequests(node, source)
    limited = None if rate is None else LimitedSnapshots(rate, node, source, requests)
    calls = limited or RequestableCaller(node, source, requests)
    return calls, RequestableCaller(f"{node}-ack", source, requests), requests


class ShardTracker:
    """The rows of a shared source in the state store: the owner and the progress of each shard.

    The source uses it as its table. A token begins with the id of its pipeline. `on_takeover` is called with the
    pipeline of another worker before the source continues a shard of that worker, or takes one as done. If that
    worker died, a staged destination may not show its last commit yet.
    """

    def __init__(self, source: SharedSource[Any], shards: Shards, name: str) -> None:
        self._source = source
        self._shards = shards
        self._pipeline = name.partition("/")[0]
        self._former_tokens: dict[str, str] = {}
        self.on_takeover: Callable[[str], Awaitable[None]] = _do_nothing
        source.join(self, name)

    @property
    def scope(self) -> str:
        return self._source.scope

    async def open(self, scope: str, names: Sequence[str], token: str) -> Sequence[SharedShard]:
        rows = await self._shards.open(scope, names, token)
        self._former_tokens = {row.shard: row.token for row in rows if row.token != token}
        await self._report_owners([row.shard for row in rows if row.done])
        return rows

    async def acquire(self, scope: str, names: Sequence[str], token: str, idle_seconds: float) -> Sequence[SharedShard]:
        rows = await self._shards.acquire(scope, names, token, idle_seconds)
        # The former owners can commit nothing more. Their last commit must be visible before what follows it.
        await self._report_owners([row.shard for row in rows])
        return rows

    async def prune(self, scope: str, *, age_seconds: float, count_max: int, grace_seconds: float) -> int:
        return await self._shards.prune(
            scope, age_seconds=age_seconds, count_max=count_max, grace_seconds=grace_seconds
        )

    async def _report_owners(self, names: Iterable[str]) -> None:
        owners = {self._former_tokens[name].partition("/")[0] for name in names if name in self._former_tokens}
        for owner in sorted(owners - {self._pipeline}):
            await self.on_takeover(owner)

    def changes(self, positions: Iterable[Sequence[bytes]]) -> list[ShardChange]:
        """Return the changes for a commit of these positions, which is refused if another worker owns a row."""
        # I14: each change carries our token, and the store checks it inside the commit.
        return [
            ShardChange(self.scope, made.shard, made.token, made.start, made.end, made.done)
            for made in self._source.progress(list(chain.from_iterable(positions)))
        ]

    async def advance(self, positions: Iterable[Sequence[bytes]]) -> None:
        """Record the progress without a transaction. Shards that other workers have taken over are left to them."""
        for change in await self._shards.advance(self.changes(positions)):
            log.warning("another worker took over %s of %s and will repeat it", change.shard, change.scope)


async def _do_nothing(owner: str) -> None:
    await trio.lowlevel.checkpoint()
