"""Units: what a processor does to its state while it has one record, or one batch, is done whole or not at all."""

from collections.abc import Callable, Iterable
from typing import Any

from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer
from conduit_py.record import Record
from conduit_py.sdk.state import Defer, State


def with_atomic_state(
    call: Callable[..., Any], state: State, *, is_async: bool, given: bool, defers: bool = False
) -> Callable[[Record | Batch], Any]:
    """The call with its state: one that raises, or gives an error as its result, has not touched it.

    `given` tells whether the call takes the state as its second argument. One that `defers` may have changed a
    record before it did: the Defer that comes out of it has the record as it came.
    """
    more = (state,) if given else ()

    def once(subject: Record | Batch) -> Any:
        state.advance()
        came = _copy(subject) if defers else []
        try:
            return _keep(state, subject, call(subject, *more), came)
        except Defer:
            return _defer(state, subject, came)
        except BaseException:
            state.undo()
            raise

    async def once_async(subject: Record | Batch) -> Any:
        state.advance()
        came = _copy(subject) if defers else []
        try:
            return _keep(state, subject, await call(subject, *more), came)
        except Defer:
            return _defer(state, subject, came)
        except BaseException:
            state.undo()
            raise

    return once_async if is_async else once


def _copy(subject: Record | Batch) -> list[Record]:
    return [subject.copy()] if isinstance(subject, Record) else [record.copy() for record in subject]


def _keep(state: State, subject: Record | Batch, result: Any, came: list[Record]) -> Any:
    if isinstance(result, Defer):
        raise result
    if isinstance(result, Exception):
        state.undo()
        return result
    if came and not isinstance(subject, Record) and isinstance(result, Iterable):
        return _keep_in_part(state, list(result), came)
    state.keep()
    return result


def _keep_in_part(state: State, results: list[Any], came: list[Record]) -> list[Any]:
    """The results for a batch whose end may be deferred: what was done to the state is about the records before."""
    first = next((index for index, result in enumerate(results) if isinstance(result, Defer)), len(results))
    if first == len(results) or len(results) != len(came):
        state.keep()
        return results
    if not all(isinstance(result, Defer) for result in results[first:]):
        raise CannotDefer(
            "a record was deferred, but not all behind it: the next transaction would have them in another order",
            suggestion="give Defer() for the first record that is deferred and for all behind it",
        )
    if first == 0:
        state.defer()
    else:
        state.keep()
    return results[:first] + [Defer(record) for record in came[first:]]


def _defer(state: State, subject: Record | Batch, came: list[Record]) -> Any:
    state.defer()
    if not came:
        raise Defer
    if isinstance(subject, Record):
        raise Defer(came[0])
    return list(map(Defer, came))
