"""Units: what a processor does to its state while it has one record, or one batch, is done whole or not at all."""

from collections.abc import Callable
from typing import Any

from conduit_py.batch import Batch
from conduit_py.record import Record
from conduit_py.sdk.state import State


def in_units(call: Callable[..., Any], state: State, *, is_async: bool, given: bool) -> Callable[[Record | Batch], Any]:
    """The call with its state: one that raises, or gives an error as its result, has not touched it.

    `given` tells whether the call takes the state as its second argument.
    """
    more = (state,) if given else ()

    def once(subject: Record | Batch) -> Any:
        state.advance()
        try:
            return _kept(state, call(subject, *more))
        except BaseException:
            state.undo()
            raise

    async def once_async(subject: Record | Batch) -> Any:
        state.advance()
        try:
            return _kept(state, await call(subject, *more))
        except BaseException:
            state.undo()
            raise

    return once_async if is_async else once


def _kept(state: State, result: Any) -> Any:
    if isinstance(result, Exception):
        state.undo()
    else:
        state.keep()
    return result
