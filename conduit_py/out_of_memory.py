"""Out of memory: ends the process where it could only sleep for ever."""

import os
import threading
from typing import NoReturn

EXIT_CODE = 1
_MESSAGE = (
    b"error: out of memory; the next run reads again what was in flight\n"
    b"  give the process more memory, or make batch_size and window smaller\n"
)


def end_without_memory() -> NoReturn:
    """End the process like a crash, which every pipeline survives; this needs no memory."""
    os.write(2, _MESSAGE)
    os._exit(EXIT_CODE)


def end_if_without_memory(ended: threading.ExceptHookArgs) -> None:
    """A hook for threads that end by an error, those of trio too: tasks may wait for them for ever."""
    if issubclass(ended.exc_type, MemoryError):
        end_without_memory()
    threading.__excepthook__(ended)
