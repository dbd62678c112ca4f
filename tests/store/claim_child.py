"""A process that commits transactions to any store, for tests that kill it. It tells on standard output what it did.

claim_child.py commit STATE OWNERS    commit ever newer transactions; a line for each that was acknowledged
claim_child.py held STATE PIPELINE    take the right to run a pipeline, say so, wait
"""

import os
import sys
from collections.abc import Awaitable, Callable

import trio

from conduit_py.errors import RunElsewhere
from conduit_py.store.claim import Changes, PublishedMessage
from conduit_py.store.store import open_store


def tell(*words: object) -> None:
    # One write call per line: a line is whole or absent, wherever the process is killed.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def commit(state: str, owners: str) -> None:
    store = await open_store(state)

    async def commit_for(owner: str) -> None:
        claim = await store.claim(owner)
        total = int(await claim.get(b"total") or b"0")
        for number in range(claim.committed + 1, claim.committed + 100_000):
            total += number
            changes = Changes(
                number,
                b"%d" % number,
                {b"total": b"%d" % total, b"last %d" % (number % 3): b"%d" % number},
                [(owner, b"%d" % number)],
                [PublishedMessage(owner, b"%d" % number, b"")],
                positions={"web": b"%d" % number},
            )
            await claim.commit(changes)
            tell(owner, number)

    async with trio.open_nursery() as nursery:
        for owner in range(int(owners)):
            nursery.start_soon(commit_for, f"owner-{owner}")


async def hold_claim(state: str, pipeline: str) -> None:
    async with await open_store(state) as store:
        try:
            async with store.run_lock(pipeline):
                tell("held")
                await trio.sleep_forever()
        except RunElsewhere as error:
            tell(error)


ACTIONS: dict[str, Callable[..., Awaitable[None]]] = {"commit": commit, "held": hold_claim}

if __name__ == "__main__":
    trio.run(ACTIONS[sys.argv[1]], *sys.argv[2:])
