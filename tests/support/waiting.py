"""Waiting for a condition on the real clock. The deadline guards against a hang; it measures nothing."""

from collections.abc import Callable

import trio


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    with trio.fail_after(300):
        while True:
            if condition():
                return
            await trio.sleep(0.01)
