"""Publish: how the driver shows what tasks have made ready: all of it or nothing, and each batch of a stream once."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from conduit_py import sdk
from conduit_py.killpoint import reach
from conduit_py.sdk.transactional import TransactionalDestination
from conduit_py.spark.format.outlet import Outlet, opened
from conduit_py.spark.format.parcel import Parcel
from conduit_py.store.claim import Changes
from conduit_py.store.opening import open_store


class Published(msgspec.Struct, frozen=True, array_like=True):
    """The last batch of a stream that is committed, and what shows it if that has not been done yet."""

    batch: int
    intent: bytes | None = None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes | None) -> "Published":
        return cls(-1) if encoded is None else msgspec.msgpack.decode(encoded, type=cls)


async def publish_once(destination: sdk.StagedDestination[Any], owner: str, parcels: Iterable[Parcel]) -> None:
    """Show the rows of a job. A crash before they are shown leaves nothing of them.

    Whoever else does this for the same owner and place at the same time fences this: then nothing is shown.
    """
    async with opened(destination, owner) as outlet:
        if isinstance(destination, TransactionalDestination):
            await outlet.call("claim", owner, _fence())
            await _write(outlet, parcels)
            await outlet.call("commit", Published(0).encode())
            return
        await outlet.call("begin", owner, _fence(), [])
        await _write(outlet, parcels)
        intent = await outlet.call("stage")
        if intent is not None:
            await outlet.call("apply", intent)


async def publish_batch(
    destination: sdk.StagedDestination[Any], owner: str, batch: int, state: str, parcels: Iterable[Parcel]
) -> None:
    """Show the rows of one batch of a stream, unless it or a later one was shown before.

    A database keeps the number of the batch with its rows, in one transaction. For any other destination the store
    at `state` keeps it with the intent, between staging and showing.
    """
    async with opened(destination, owner) as outlet:
        if isinstance(destination, TransactionalDestination):
            last = Published.decode(await outlet.call("claim", owner, _fence()))
            if batch > last.batch:
                await _write(outlet, parcels)
                await outlet.call("commit", Published(batch).encode())
            return
        async with await open_store(state) as store:
            claim = await store.claim(owner)
            last = Published.decode(claim.checkpoint)
            await outlet.call("begin", owner, claim.fence, [] if last.intent is None else [last.intent])
            if batch <= last.batch:
                return
            await _write(outlet, parcels)
            intent = await outlet.call("stage")
            reach("spark.format.before_commit")
            await claim.commit(Changes(claim.committed + 1, Published(batch, intent).encode()))
            reach("spark.format.before_apply")
            if intent is not None:
                await outlet.call("apply", intent)


async def _write(outlet: Outlet, parcels: Iterable[Parcel]) -> None:
    for parcel in parcels:
        for records in parcel.records():
            await outlet.write(parcel.partition, records)


def _fence() -> int:
    """Higher than that of any earlier claim: nobody but the clock is there to count them."""
    return time.time_ns()
