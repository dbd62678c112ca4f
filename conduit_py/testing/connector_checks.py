"""Checks: one rule of the connector contract each, as a function that raises AssertionError when it is broken."""

import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import trio

from conduit_py.sdk.plugin import Plugin
from conduit_py.testing.connector_driver import DestinationCase, SourceCase, require

SourceCheck: TypeAlias = Callable[[SourceCase], Awaitable[None]]
DestinationCheck: TypeAlias = Callable[[DestinationCase], Awaitable[None]]


END_SECONDS = 5.0
"""How long a thread or an open file may outlive its connector before it counts as a leak."""


class DoesNotApply(Exception):
    """The rule is not for this connector; the message says why."""


def run_check(check: Callable[[Any], Awaitable[None]], case: Any, *, seconds: float = 120.0) -> None:
    """Run one check on the real clock. One that takes longer than `seconds` has failed."""

    async def within_deadline() -> None:
        with trio.move_on_after(seconds) as scope:
            await check(case)
        require(not scope.cancelled_caught, f"did not end within {seconds:g} seconds")

    trio.run(within_deadline)


def options_are_valid(connector: Plugin[Any]) -> None:
    problems = "; ".join(map(str, connector.problems))
    require(not connector.problems, f"the connector under test has mistakes in its options: {problems}")


def options_that_do_not_exist_are_refused(connector: Plugin[Any]) -> None:
    written = connector._written | {"no_such_option": 1}
    problems = type(connector)(**written).problems
    rule = "an option that does not exist is accepted: derive the options from conduit_py.sdk.Options"
    require(any(problem.path == "no_such_option" for problem in problems), rule)


def required_options_are_required(connector: Plugin[Any]) -> None:
    fields = connector.options_model.model_fields
    for name in (name for name, field in fields.items() if field.is_required()):
        written = {key: value for key, value in connector._written.items() if key != name}
        problems = type(connector)(**written).problems
        require(any(problem.path == name for problem in problems), f"nobody says so when {name!r} is missing")


OPTION_CHECKS = (options_are_valid, options_that_do_not_exist_are_refused, required_options_are_required)


async def leaves_nothing_behind(live: Callable[[list[object]], Awaitable[None]]) -> None:
    """Check that `live`, a connector's whole life, leaves no thread and no open file.

    `live` puts the connectors it used into the list it is given: as long as they are alive, what they
    forgot to close stays open and can be counted.
    """
    alive: list[object] = []
    await live(alive)  # the first time may open what stays open on purpose, such as caches of libraries
    threads, files = _threads(), _files()
    for _ in range(3):
        await live(alive)
    # A thread that was asked to end takes a moment, on a busy machine a long one.
    deadline = time.monotonic() + END_SECONDS
    while (_threads() - threads or _files() > files) and time.monotonic() < deadline:
        gc.collect()
        await trio.sleep(0.05)
    left = len(_threads() - threads)
    require(not left, f"{left} threads are left behind by three runs")
    require(_files() <= files, f"{_files() - files} open files are left behind by three runs")


def _threads() -> set[threading.Thread]:
    # trio keeps idle worker threads for later use; they are nobody's leak.
    return {thread for thread in threading.enumerate() if not thread.name.startswith("Trio")}


def _files() -> int:
    return len(os.listdir("/dev/fd"))
