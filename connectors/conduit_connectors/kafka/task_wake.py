"""TaskWake: how the thread of a consumer ends the wait of the task that reads."""

from collections.abc import Callable
from contextlib import suppress

import trio


class TaskWake:
    """Ends the wait of one task, from any thread. The caller holds one lock for both methods."""

    def __init__(self) -> None:
        self._wake: Callable[[], None] | None = None

    def begin(self) -> trio.Event:
        """Return the event to wait for, in the task. The next `end` sets it."""
        came, token = trio.Event(), trio.lowlevel.current_trio_token()

        def wake() -> None:
            # The thread may outlive a run that was cancelled.
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(came.set)

        self._wake = wake
        return came

    def end(self) -> None:
        if self._wake is not None:
            self._wake()
            self._wake = None
