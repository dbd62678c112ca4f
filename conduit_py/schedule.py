"""Schedule: the times at which the bounded sources of a pipeline are read again, in the time zone of the user."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import dropwhile
from zoneinfo import ZoneInfo, available_timezones

import trio
from cronsim import CronSim, CronSimError

from conduit_py.sdk.plugin import did_you_mean, option_error
from conduit_py.status import PipelineState, Status

LOOK_SECONDS = 60.0
"""How often a wait compares itself with the clock of the machine, which may be set, or stand still in a suspend."""


@dataclass(frozen=True)
class Schedule:
    """A cron expression of five fields, or of six with seconds first, in a time zone.

    A time that a change to summer time skips comes right after the change. One that the change back repeats comes once,
    as with cron on Debian. Expressions with `*` in minutes or hours follow the clock through both.
    """

    expression: str
    timezone: str = "UTC"

    def next_after(self, at: float) -> float:
        """Return the first time after `at`, both in seconds since 1970."""
        start = datetime.fromtimestamp(at, load_zone(self.timezone))
        times = (found.timestamp() for found in CronSim(self.expression, start))
        # In an hour that is repeated, the library begins with the first of the two, which may be over.
        return next(dropwhile(lambda found: found <= at, times))

    def first_run(self, last: PipelineState, now: float) -> float:
        """Return when to run after a start, given the state that the pipeline had last.

        That is now if the last run did not come to its end, or if one was due since then: once, however many were.
        """
        if last.next_run is not None:
            return now if last.next_run <= now else self.next_after(now)
        # It never ran, or it ran to its end when it had no schedule.
        return self.next_after(now) if last.status in (Status.CREATED, Status.COMPLETED) else now

    def describe(self, at: float) -> str:
        """Return a time in words, in the time zone of the schedule."""
        local = datetime.fromtimestamp(at, load_zone(self.timezone))
        return f"{local:%Y-%m-%d %H:%M:%S}".removesuffix(":00") + f" {self.timezone}"


async def sleep_until(at: float, clock: Callable[[], float], called: trio.Event) -> None:
    """Wait until `clock` shows `at`, or until the event."""
    while (seconds := at - clock()) > 0 and not called.is_set():
        with trio.move_on_after(min(seconds, LOOK_SECONDS)):
            await called.wait()


def check_expression(expression: str) -> str:
    """Return a cron expression that can come true. Raises for any other."""
    hint = '"0 3 * * *" is every day at 3:00: minute, hour, day of the month, month, day of the week'
    try:
        CronSim(expression, datetime.now(UTC)).__next__()
    except StopIteration:
        raise option_error("names a time that never comes", hint) from None
    # The library asserts some of what it does not expect.
    except (CronSimError, AssertionError, ValueError) as error:
        what = str(error).removeprefix("Bad ")
        wrong = f": its {what} cannot be read" if what != str(error) else ""
        raise option_error(f"must be a cron expression of five fields{wrong}", hint) from None
    return expression


def check_zone(name: str) -> str:
    """Return the name of a time zone that this machine has. Raises for any other."""
    try:
        load_zone(name)
    # A folder of zones, a path that leads out of it, a file that is none: each fails in its own way.
    except (LookupError, ValueError, OSError):
        known = available_timezones()
        hint = did_you_mean(name, sorted(known)) or "such as Europe/Berlin" if known else "pip install tzdata"
        raise option_error("must be the name of a time zone that this machine has", hint) from None
    return name


def load_zone(name: str) -> tzinfo:
    """Return a time zone. UTC needs no database of zones, which small machines lack."""
    return UTC if name == "UTC" else ZoneInfo(name)
