"""Signals: the first asks the pipelines to stop, the second makes them, the third does not ask any more."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import trio

from conduit_py.cli.output import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def stop_on_signal(
    stop: Callable[[], None],
    force: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` at the first SIGINT or SIGTERM and `force` at the second; the third ends the process."""
    with trio.open_signal_receiver(*SIGNALS) as signals:
        count = _SignalCount()
        task_status.started()
        await anext(signals)
        count.heard = True
        stop()
        # Two of a kind that arrive while the loop is held up are received as one.
        if count.arrived == 1:
            await anext(signals)
        force()
        # One that nobody takes is raised again at the end, when nobody stops for it any more.
        async for _ in signals:
            pass


class _SignalCount:
    """Counts signals where they arrive: a processor that never returns holds up the loop that would receive them."""

    def __init__(self) -> None:
        receive = signal.getsignal(signal.SIGINT)
        assert callable(receive)
        self._receive = receive
        self.arrived = 0
        self.heard = False
        for number in SIGNALS:
            signal.signal(number, self._count)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.arrived += 1
        self._receive(number, frame)
        if self.arrived > 2:
            _leave()
        if self.arrived == 2 and not self.heard:
            os.write(sys.stderr.fileno(), b"\nwaiting for a call that does not return; once more leaves at once\n")


def _leave() -> None:
    """End like a crash, which every pipeline survives: what is not settled is read again."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h")  # a live table has hidden the cursor
    os.write(sys.stderr.fileno(), b"\nleft at once; the next run reads again what was in flight\n")
    os._exit(ExitCode.FAILED)
