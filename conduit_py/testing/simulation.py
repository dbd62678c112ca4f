"""Simulation: run async code so that one number decides everything that chance would otherwise decide.

The seed decides the order in which trio runs its tasks, and what the module `random` returns; time
is virtual and jumps ahead whenever every task waits. The same seed gives the same run, in every
process; another seed gives another interleaving. What it cannot rule: threads, sockets, the real
clock, `random.Random()` without a seed, and the order of sets of objects. Code that runs in threads can be
simulated too: virtual time waits for it, but its runs are not repeatable.
"""

import functools
import inspect
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, TypeVar

import outcome
import trio
from trio.testing import MockClock

from conduit_py.errors import EnvironmentUnfit
from conduit_py.owned_thread import OwnedThread

T = TypeVar("T")

SEED_VARIABLE = "CONDUIT_SEED"
THREAD_SECONDS_MAX = 10.0
"""How much real time a call in a thread gets before virtual time goes on without it."""


class SimulationStuck(AssertionError):
    """The simulated code did not end within its virtual time. The message shows where every task waits."""


def simulate(main: Callable[..., Awaitable[T]], *args: Any, seed: int = 0, seconds: float = 3600.0) -> T:
    """Run `main(*args)` under this seed, from the virtual time 0, and return its result.

    Code that has not ended after `seconds` of virtual time raises SimulationStuck. So a deadlock fails at once, and no
    test hangs. Every error carries the seed as a note.
    """
    with use_seed(seed):
        try:
            return trio.run(_run_with_deadline, main, args, seconds, clock=_clock())
        except BaseException as error:
            error.add_note(f"simulated with seed {seed}: the same seed repeats this run exactly")
            raise


def simulated(*, seeds: Iterable[int] = range(20), seconds: float = 3600.0) -> Callable[[Any], Callable[..., None]]:
    """Make an async test a sync one that runs under each of the seeds, and stops at the first that fails.

    Works with any test runner; fixtures are passed on, those of pytest-trio excepted. A parameter
    called `seed` is given the seed. `pytest --conduit-seed=N`, or CONDUIT_SEED=N, runs that seed only.
    """
    several = list(seeds)

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            chosen = os.environ.get(SEED_VARIABLE)
            for seed in several if chosen is None else [int(chosen)]:
                given = kwargs | {"seed": seed} if "seed" in signature.parameters else kwargs
                try:
                    simulate(functools.partial(test, *args, **given), seed=seed, seconds=seconds)
                except Exception as error:
                    error.add_note(f"pytest --conduit-seed={seed} runs this seed alone")
                    raise

        visible = [parameter for name, parameter in signature.parameters.items() if name != "seed"]
        run.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Within the block trio's scheduler and the module `random` follow `seed`; afterwards all is as before."""
    run = _scheduler()
    flag, scheduler_state, random_state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate(), random.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    # Seeded in place, never replaced: Hypothesis keeps a reference to this object.
    run._r.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = flag
        run._r.setstate(scheduler_state)
        random.setstate(random_state)


def _scheduler() -> Any:
    """trio's scheduler module, if it still has the two private names that make it deterministic."""
    from trio._core import _run

    names = _run.__dict__
    if not isinstance(names.get("_r"), random.Random) or not isinstance(
        names.get("_ALLOW_DETERMINISTIC_SCHEDULING"), bool
    ):
        raise EnvironmentUnfit(
            f"trio {trio.__version__} cannot be simulated: its scheduler has no seed to set any more",
            suggestion="use the trio version that this release of conduit-py was tested with",
        )
    return _run


def _clock() -> MockClock:
    """A clock that jumps ahead when every task waits, but not while one of them waits for a thread."""
    clock = MockClock(autojump_threshold=0)
    jump = clock.jump
    patience = [0.0]

    def jump_unless_a_thread_works(seconds: float) -> None:
        if patience[0] < THREAD_SECONDS_MAX and any(map(_waits_for_thread, _tasks())):
            # Real time, because the thread works in real time.
            time.sleep(0.0005)
            patience[0] += 0.0005
        else:
            patience[0] = 0.0
            jump(seconds)

    clock.jump = jump_unless_a_thread_works  # type: ignore[method-assign]
    return clock


def _waits_for_thread(task: trio.lowlevel.Task) -> bool:
    # Asked of every task at every jump, and the frames of a task cost much. What would abort its wait was made by the
    # innermost call: nearly always one that waits for another task or for time, so the frames need not be looked at.
    abort = getattr(task, "_abort_func", None)
    if abort is not None and getattr(abort, "__code__", None) not in _ABORTS:
        return False
    return any(frame.f_code in _THREAD_CALLS for frame, _ in task.iter_await_frames())


def _codes_within(call: Callable[..., Any]) -> set[CodeType]:
    """The functions that a call makes: one of them aborts its wait."""
    return {const for const in inspect.unwrap(call).__code__.co_consts if isinstance(const, CodeType)}


_THREAD_CALLS = {inspect.unwrap(call).__code__ for call in (trio.to_thread.run_sync, OwnedThread.run)}
_ABORTS = (
    _codes_within(trio.to_thread.run_sync)
    | _codes_within(OwnedThread.ask)
    | _codes_within(trio.lowlevel.ParkingLot.park)  # What a limiter of threads waits in.
)


def _tasks() -> Iterator[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    pending = [] if root is None else [root]
    while pending:
        task = pending.pop()
        yield task
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


async def _run_with_deadline(main: Callable[..., Awaitable[T]], args: tuple[Any, ...], seconds: float) -> T:
    stuck: list[str] = []

    async def watch() -> None:
        await trio.sleep(seconds)
        stuck.extend(_where_tasks_wait())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        if seconds < math.inf:
            nursery.start_soon(watch)
        # Captured: an error must not arrive wrapped in the exception group of this nursery.
        result = await outcome.acapture(main, *args)
        nursery.cancel_scope.cancel()
    if stuck:
        raise SimulationStuck(f"not done after {seconds:g} virtual seconds; the tasks wait at\n" + "\n".join(stuck))
    return result.unwrap()


def _where_tasks_wait() -> list[str]:
    root = trio.lowlevel.current_root_task()
    return [] if root is None else list(_lines(root, 0))


def _lines(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    # The innermost frames belong to trio. The most useful one is the last outside of trio.
    frames = [(frame.f_code.co_filename, line) for frame, line in task.iter_await_frames()]
    ours = [place for place in frames if f"{os.sep}trio{os.sep}" not in place[0]] or frames
    if ours and task is not trio.lowlevel.current_task():
        yield f"  {'  ' * depth}{task.name}: {ours[-1][0]}:{ours[-1][1]}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda each: each.name):
            yield from _lines(child, depth + 1)
