"""A process that forwards an outbox to a file, for tests that kill it.

forwarder_child.py STATE FILE    send what waits in a store; each message becomes a line with its target, key and body
"""

import os
import sys

import trio

from conduit_py.backoff import Backoff
from conduit_py.outbox.forwarder import Forwarder
from conduit_py.store.store import open_store
from conduit_py.store.tables import OutboxMessage


async def forward(state: str, file: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def send(message: OutboxMessage) -> None:
        await trio.lowlevel.checkpoint()
        # One write call per line: a line is whole or absent, wherever the process is killed.
        os.write(descriptor, b"%s %s %s\n" % (message.target.encode(), message.key, message.body))

    async with await open_store(state) as store:
        forwarder = Forwarder(store.outbox, send, batch_size=3, lease_seconds=0.2, delays=Backoff(delay_seconds=0.01))
        while await store.outbox.targets():
            await forwarder.drain()
            await trio.sleep(0.01)


if __name__ == "__main__":
    trio.run(forward, sys.argv[1], sys.argv[2])
