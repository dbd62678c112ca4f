"""User errors: makes everything that user code may raise an ordinary error of its pipeline."""

import signal
import sysconfig
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

import trio

from conduit_py.defaults import OUR_PACKAGES
from conduit_py.errors import FatalError, describe
from conduit_py.exhaustion import CAUSES_MAX, exhaustion_of

ASYNCIO_SIGNS = ("no running event loop", "trio.run received unrecognized yield message")
"""How the errors begin that asyncio and trio raise where code for asyncio runs on trio."""

RAISED_AT = "raised_at"
"""The attribute of an error from another process: its location there, because its traceback cannot leave."""


class WrongEventLoop(FatalError):
    """A connector or processor called asyncio: async functions run on trio, where no such call can work."""

    code = "plugin.asyncio"

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            f"async functions run on trio, and asyncio was called: {describe(cause)}",
            suggestion="call trio (trio.sleep, trio.to_thread.run_sync) or a library that works on trio, such as "
            "httpx2 and everything on anyio; give a processor asyncio=True to run it on asyncio; or write a plain "
            "function: it may block, and may use asyncio.run",
        )


class ExitAttempted(RuntimeError):
    """User code raised something that would end the whole process, such as SystemExit; the cause is chained."""

    def __init__(self, raised: BaseException) -> None:
        first = _first_exit(raised)
        super().__init__(f"{type(first).__name__}{_arguments(first)}: code of a pipeline cannot end the process")
        self.__cause__ = raised


def as_error(raised: BaseException) -> Exception:
    """Return what user code raised as an ordinary error; raise it again if it did not come from user code.

    SystemExit, KeyboardInterrupt and GeneratorExit would pass every `except Exception` and end all pipelines of the
    process, so they become ExitAttempted. A cancellation and a signal such as Ctrl-C are not the user code's.
    """
    if isinstance(raised, Exception):
        return raised
    if _is_cancellation(raised) or _comes_from_outside(raised):
        raise raised
    return ExitAttempted(raised).with_traceback(raised.__traceback__)


def as_plugin_error(raised: BaseException) -> Exception:
    """Return what a plugin raised as an ordinary error, which may be about a record.

    Raises WrongEventLoop if it called asyncio, and Exhausted if it had no memory, descriptor or thread left.
    """
    exhausted = exhaustion_of(raised)
    if exhausted is not None:
        # Not a nack: dead letters would hold sound records, as many as the machine is short of memory for.
        raise exhausted from raised
    error: BaseException | None = raised
    # The chain of causes: code that wraps its errors hides this one. Bounded: a chain may be a ring.
    for _ in range(CAUSES_MAX):
        if error is None:
            break
        text = error.args[0] if error.args else None
        if isinstance(error, RuntimeError | TypeError) and isinstance(text, str) and text.startswith(ASYNCIO_SIGNS):
            # Fatal, not a nack: every record would be refused for it.
            raise WrongEventLoop(error) from raised
        error = error.__cause__
    return as_error(raised)


def code_location(error: BaseException) -> str | None:
    """Return file, line and function of the user's code that an error passed last; None if it passed none.

    Code of an installed package counts only if nothing else is there: users look for their mistakes in their own files.
    """
    if isinstance(elsewhere := getattr(error, RAISED_AT, None), str):
        return elsewhere
    found = installed = None
    trace = error.__traceback__
    while trace is not None:
        file, module = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in _PASSED_OVER:
            pass
        elif file.startswith(_INSTALLED):
            # The first one is the plugin itself; behind it are the libraries that it uses.
            installed = installed or trace
        elif not file.startswith(_STANDARD_LIBRARY):
            found = trace
        trace = trace.tb_next
    found = found or installed
    return None if found is None else _location(found)


# Ours, and what brings an error from a thread to us: it stands before the plugin.
_PASSED_OVER = {*OUR_PACKAGES, "trio", "outcome"}
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen ")


def _location(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    name = code.co_qualname.rpartition("<locals>.")[2]
    return f"{code.co_filename}:{trace.tb_lineno} in {name}"


def _first_exit(raised: BaseException) -> BaseException:
    """Return the error itself, or the first one in a group of a nursery that is no ordinary error."""
    while isinstance(raised, BaseExceptionGroup):
        raised = next(each for each in raised.exceptions if not isinstance(each, Exception))
    return raised


def _arguments(raised: BaseException) -> str:
    plain = all(isinstance(arg, str | int | None) for arg in raised.args)
    return f"({', '.join(map(repr, raised.args))})" if plain and raised.args else ""


def _is_cancellation(raised: BaseException) -> bool:
    if isinstance(raised, BaseExceptionGroup):
        return raised.subgroup(trio.Cancelled) is not None
    return isinstance(raised, trio.Cancelled)


def _comes_from_outside(raised: BaseException) -> bool:
    """True if a signal raised it in the middle of user code, or trio did while user code was waiting."""
    frames = list(_frames(raised))
    # trio raises Ctrl-C at a checkpoint, and GeneratorExit where a task waits that is thrown away.
    if frames and frames[-1].f_globals.get("__name__", "").startswith("trio._core"):
        return True
    # An abandoned generator of ours is closed where it stands: no user code is above it.
    if isinstance(raised, GeneratorExit):
        return not frames or frames[-1].f_globals.get("__name__", "").startswith("conduit_py.")
    if threading.current_thread() is not threading.main_thread():
        return False
    # Python's own handler of Ctrl-C leaves no frame.
    if isinstance(raised, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    handlers = set(_signal_handlers())
    return any(frame.f_code in handlers for frame in frames)


def _frames(raised: BaseException) -> Iterator[FrameType]:
    trace = raised.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _signal_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        code = getattr(signal.getsignal(number), "__code__", None)
        if isinstance(code, CodeType):
            yield code
