"""BreakableRelay: a port on loopback that leads to a server, until a test cuts all connections through it."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from conduit_py.testing.server_process import free_port


class BreakableRelay:
    """`kill()` cuts every connection and refuses new ones; `start()` allows them again, on the same port."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def kill(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            # A thread that waits in `accept` keeps the port, unless it is woken.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
