"""Signals: the first asks the pipelines to stop, the second makes them, the third does not ask any more."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import trio

from conduit_py.cli.exit_code import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def stop_on_signal(
    stop: Callable[[], None],
    force: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` at the first SIGINT or SIGTERM and `force` at the second; the third ends the process."""
    with trio.open_signal_receiver(*SIGNALS) as signals:
        _count_signals()
        task_status.started()
        await anext(signals)
        stop()
        await anext(signals)
        force()
        await trio.sleep_forever()


def _count_signals() -> None:
    """Count signals where they arrive: a processor that never returns holds up the loop that would receive them."""
    receive = signal.getsignal(signal.SIGINT)
    assert callable(receive)
    arrived = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived += 1
        receive(number, frame)
        if arrived > 2:
            _leave()

    for number in SIGNALS:
        signal.signal(number, count)


def _leave() -> None:
    """End like a crash, which every pipeline survives: what is not settled is read again."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h")  # a live table has hidden the cursor
    os.write(sys.stderr.fileno(), b"\nleft at once; the next run reads again what was in flight\n")
    os._exit(ExitCode.FAILED)
