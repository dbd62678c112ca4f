"""A WebSocket server that tests run as a process of its own, so that it can be killed, and the service that runs it.

    python websocket_feed.py PORT LIFE

Each client that says `subscribe` gets numbers from 0 on, each with the number of the server's life.
"""

import json
import sys
import time
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from conduit_py.testing.server_process import LoopbackService

PADDING = "x" * 20_000
"""So that a kill comes in the middle of a message."""


class FeedServer(LoopbackService):
    """Sends about a thousand numbers a second. `life` says how often it was started."""

    name = "websocket"
    life = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/numbers"

    def start(self) -> None:
        self.life += 1
        self.run([sys.executable, str(Path(__file__)), str(self.port), str(self.life)])


def main(port: int, life: int) -> None:
    def talk(connection: ServerConnection) -> None:
        try:
            assert connection.recv() == "subscribe"
            for number in range(10**9):
                connection.send(json.dumps({"life": life, "n": number, "padding": PADDING}))
                # The reader keeps all of them.
                time.sleep(0.001)
        except ConnectionClosed:
            pass

    with serve(talk, "127.0.0.1", port) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
