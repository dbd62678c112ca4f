"""Callback: the function of ours that a streaming query calls with each batch, and the line on which it does."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Callback:
    """Called with a batch and its number; `function` says whether Spark may commit the batch.

    Where it may not, the line is hung up, on which Spark takes the batch for failed and ends the query. An exception
    would do the same with two pages of stack traces. PySpark never ends the thread in which it calls: `close` does.
    """

    def __init__(self, session: "SparkSession", function: Callable[["DataFrame", int], bool]) -> None:
        self._client: Any = session.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        self._function = function
        self._connection: Any = None

    def __call__(self, frame: "DataFrame", number: int) -> None:
        self._connection = self._client.get_thread_connection()
        if not self._function(frame, number):
            self.close()

    def close(self) -> None:
        """Hang up. Only the socket: to close the connection would wait for the thread that reads from it."""
        line = self._connection.socket if self._connection is not None else None
        if line is not None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
