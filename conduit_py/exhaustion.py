"""Exhaustion: recognises that the process ran out of memory, file descriptors or threads. That passes by itself.

It is no property of a record or of a definition, even if a processor, a connector or the state store runs into it.
Only where tasks would wait for ever for a thread that had no memory does it end the process.
"""

import errno
import os
import threading
from contextlib import suppress
from typing import NoReturn

from conduit_py.errors import FatalError, NodeFailed, RunError, TransientError, describe

CAUSES_MAX = 10
DESCRIPTORS_NEEDED = 16
"""Fewer free descriptors than these count as none: what failed may have closed some since, to clean up."""

MEMORY, DESCRIPTORS, MEMORY_OR_THREADS = "memory", "file descriptors", "memory or threads"
_ERRNOS = {errno.EMFILE: DESCRIPTORS, errno.ENFILE: DESCRIPTORS, errno.ENOMEM: MEMORY}
_ADVICE = {
    MEMORY: "give the process more memory, or make batch_size and window smaller",
    DESCRIPTORS: "allow the process more of them (ulimit -n), or run fewer pipelines in it",
    MEMORY_OR_THREADS: "give the process more memory, or allow its user more threads (ulimit -u)",
}


class Exhausted(TransientError):
    """The process had no memory, file descriptor or thread left for something; the cause is chained."""

    code = "run.exhausted"


def exhaustion_of(error: BaseException) -> Exhausted | None:
    """Return the error as Exhausted if it was caused by that, else None."""
    if isinstance(error, Exhausted):
        return error
    what = what_ran_out(error)
    return _exhausted(what, error) if what is not None else None


def unless_exhausted(error: RunError) -> RunError:
    """Return an error that ends a run as it is, or as Exhausted if that may have caused it.

    Also if no cause says so: libraries such as SQLite hide it. An error that comes again later is what it was.
    """
    # Errors that are classified as transient already start the pipeline again by themselves.
    if not isinstance(error, FatalError | NodeFailed):
        return error
    exhausted = exhaustion_of(error)
    if exhausted is None and _no_descriptors():
        exhausted = _exhausted(DESCRIPTORS, error)
    return exhausted or error


def _exhausted(what: str, error: BaseException) -> Exhausted:
    exhausted = Exhausted(f"out of {what}: {describe(error)}", suggestion=_ADVICE[what])
    exhausted.node = getattr(error, "node", None)
    exhausted.__cause__ = error
    return exhausted


def what_ran_out(error: BaseException | None, causes_max: int = CAUSES_MAX) -> str | None:
    """Return what the process had none left of, if that caused the error."""
    # Bounded: a chain of causes may be a ring.
    if error is None or not causes_max:
        return None
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return _ERRNOS[error.errno]
    if isinstance(error, RuntimeError) and error.args[:1] == ("can't start new thread",):
        # A thread needs memory for its stack. The system does not say which of both it lacks.
        return MEMORY_OR_THREADS
    if isinstance(error, BaseExceptionGroup):
        found = (what_ran_out(each, causes_max - 1) for each in error.exceptions)
        return next((what for what in found if what is not None), None)
    return what_ran_out(error.__cause__, causes_max - 1)


def _no_descriptors() -> bool:
    opened: list[int] = []
    try:
        with suppress(FileNotFoundError):
            for _ in range(DESCRIPTORS_NEEDED):
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for each in opened:
            os.close(each)
    return False


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
