"""Atomic state: a processor's changes to its state during one call are all kept or all undone."""

from collections.abc import Callable, Iterable
from typing import Any

from conduit_py.batch import Batch
from conduit_py.errors import CannotDefer
from conduit_py.record import Record
from conduit_py.sdk.state import Defer, State


def with_atomic_state(
    call: Callable[..., Any], state: State, *, is_async: bool, passes_state: bool, defers: bool = False
) -> Callable[[Record | Batch], Any]:
    """Wrap a call so that it changes its state only if it succeeds; an error as its result undoes the changes.

    With `passes_state`, the call takes the state as its second argument. With `defers`, the call may change a record
    and then defer it; the resulting Defer carries the record as it was before the call.
    """
    more = (state,) if passes_state else ()

    def once(subject: Record | Batch) -> Any:
        state.advance()
        # A deferred record is processed again in the next transaction, so it must be as it was before.
        originals = _copy(subject) if defers else []
        try:
            return _keep(state, subject, call(subject, *more), originals)
        except Defer:
            return _defer(state, subject, originals)
        except BaseException:
            state.undo()
            raise

    async def once_async(subject: Record | Batch) -> Any:
        state.advance()
        originals = _copy(subject) if defers else []
        try:
            return _keep(state, subject, await call(subject, *more), originals)
        except Defer:
            return _defer(state, subject, originals)
        # Cancellation too: the next run must not see half of the changes that one record makes.
        except BaseException:
            state.undo()
            raise

    return once_async if is_async else once


def _copy(subject: Record | Batch) -> list[Record]:
    return [subject.copy()] if isinstance(subject, Record) else [record.copy() for record in subject]


def _keep(state: State, subject: Record | Batch, result: Any, originals: list[Record]) -> Any:
    if isinstance(result, Defer):
        raise result
    if isinstance(result, Exception):
        state.undo()
        return result
    if originals and not isinstance(subject, Record) and isinstance(result, Iterable):
        return _keep_in_part(state, list(result), originals)
    state.keep()
    return result


def _keep_in_part(state: State, results: list[Any], originals: list[Record]) -> list[Any]:
    """Return the results of a batch whose end may be deferred; the state changes belong to the records before it."""
    first = next((index for index, result in enumerate(results) if isinstance(result, Defer)), len(results))
    if first == len(results) or len(results) != len(originals):
        state.keep()
        return results
    if not all(isinstance(result, Defer) for result in results[first:]):
        # I17: a record behind a deferred one must not be in this commit.
        raise CannotDefer(
            "a record was deferred, but not all records behind it: the next transaction would reorder them",
            suggestion="return Defer() for the first deferred record and for all records behind it",
        )
    if first == 0:
        state.defer()
    else:
        state.keep()
    return results[:first] + [Defer(record) for record in originals[first:]]


def _defer(state: State, subject: Record | Batch, originals: list[Record]) -> Any:
    state.defer()
    if not originals:
        raise Defer
    if isinstance(subject, Record):
        raise Defer(originals[0])
    return list(map(Defer, originals))
