"""Signals: the first asks the pipelines to stop, the second makes them."""

import signal
from collections.abc import Callable

import trio


async def stop_on_signal(
    stop: Callable[[], None],
    force: Callable[[], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `stop` at the first SIGINT or SIGTERM and `force` at the second.

    From then on signals have their usual effect, so a third ends the process whatever it is doing.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
        stop()
        await anext(signals)
        force()
