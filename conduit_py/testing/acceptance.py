"""The acceptance suite: one line in a test file makes a connector pass, or fail, all rules of the SDK.

    def orders(tmp_path):                                  # any pytest fixtures, and `yield` to clean up
        path = tmp_path / "orders.jsonl"
        path.write_text('{"n": 1}\\n{"n": 2}\\n{"n": 3}\\n')
        return MySource(path=path)

    TestMySource = source_acceptance(orders)

    def lake(tmp_path):                                    # the destination, how to read back, and an outage
        path = tmp_path / "lake.jsonl"
        return MyDestination(path=path), lambda: [json.loads(line) for line in path.open()], lambda: without(path)

    TestMyDestination = destination_acceptance(lake)

Every rule becomes a test of its own, on a connector of its own. The rules themselves are plain
functions, in `source_checks` and `destination_checks`, for those who use another test runner.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conduit_py.record import Record
from conduit_py.resolve import plugin_problems
from conduit_py.sdk.plugin import Plugin
from conduit_py.testing.connector_driver import DestinationCase, DoesNotApply, SourceCase, require, run_check
from conduit_py.testing.destination_checks import (
    DESTINATION_CHECKS,
    STAGED_CHECKS,
    reports_that_its_system_cannot_be_reached,
)
from conduit_py.testing.event_log import numbered_record
from conduit_py.testing.source_checks import SOURCE_CHECKS

NO_OUTAGE = (
    "{} may swallow the errors of its client, and no rule would notice: give destination_acceptance a third item, a "
    "function that returns a context manager in which the system cannot be reached, or None if it is always there"
)


def source_acceptance(make: Callable[..., Any], *, records: int | None = None, seconds: float = 120.0) -> type:
    """A test class for the source that `make`, which pytest treats as a fixture, returns or yields.

    The source must hold at least three records. One without an end needs `records`, their number.
    A rule that takes longer than `seconds` counts as broken.
    """

    def case_of(made: Any) -> SourceCase:
        return SourceCase(made, records)

    return _suite("SourceAcceptance", make, SOURCE_CHECKS, case_of, seconds)


def destination_acceptance(
    make: Callable[..., Any],
    *,
    sample: Callable[[int], Record] = numbered_record,
    refused: Record | None = None,
    seconds: float = 120.0,
) -> type:
    """A test class for a destination. `make`, a pytest fixture, gives it with a function to read back.

    That function returns the `payload.after` of every record stored, in order. A third item is a function that
    returns a context manager, in which the system cannot be reached: `outage`; None for a system that is always there,
    such as a list. Without a third item the suite warns: it cannot tell whether the destination swallows errors.
    `sample(n)` makes the nth record to write, for destinations that do not take just any; `refused` is a record that
    the destination must refuse, if there can be one. A rule that takes longer than `seconds` counts as broken.
    """

    def case_of(made: Any) -> DestinationCase:
        connector, stored, *more = made
        return DestinationCase(
            connector, stored, sample, refused, more[0] if more else None, always_there=more == [None]
        )

    return _suite("DestinationAcceptance", make, DESTINATION_CHECKS + STAGED_CHECKS, case_of, seconds)


class UntriedRule(UserWarning):
    """A rule that applies was not tried: the suite was not given what it needs for that."""


def options_are_valid(connector: Plugin[Any]) -> None:
    problems = "; ".join(map(str, connector.problems))
    require(not connector.problems, f"the connector under test has problems in its options: {problems}")


def has_no_method_that_is_never_called(connector: Plugin[Any]) -> None:
    """A method that looks like one of the SDK, such as `close` in place of `teardown`, would never be called."""
    problems = "; ".join(str(each) for each in plugin_problems(connector, "", (None, None)))
    require(not problems, problems)


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
        require(any(problem.path == name for problem in problems), f"a missing option {name!r} is not reported")


OPTION_CHECKS = (
    options_are_valid,
    has_no_method_that_is_never_called,
    options_that_do_not_exist_are_refused,
    required_options_are_required,
)


def _suite(name: str, make: Callable[..., Any], checks: Any, case_of: Callable[[Any], Any], seconds: float) -> type:
    members: dict[str, Any] = {"__doc__": f"The rules of the SDK for {make.__name__}.", "made": _fixture(make)}
    for check in OPTION_CHECKS:
        members[f"test_{check.__name__}"] = _option_test(check, case_of)
    for check in checks:
        members[f"test_{check.__name__}"] = _test(check, case_of, seconds)
    return type(name, (), members)


def _fixture(make: Callable[..., Any]) -> Any:
    names = list(inspect.signature(make).parameters)

    @pytest.fixture
    def made(self: object, request: pytest.FixtureRequest) -> Iterator[Any]:
        given = {name: request.getfixturevalue(name) for name in names}
        if inspect.isgeneratorfunction(make):
            yield from make(**given)
        else:
            yield make(**given)

    return made


def _option_test(check: Callable[[Any], None], case_of: Callable[[Any], Any]) -> Callable[..., None]:
    def test(self: object, made: Any) -> None:
        check(case_of(made).connector)

    return test


def _test(check: Callable[[Any], Any], case_of: Callable[[Any], Any], seconds: float) -> Callable[..., None]:
    def test(self: object, made: Any) -> None:
        case = case_of(made)
        try:
            run_check(check, case, seconds=seconds)
        except DoesNotApply as reason:
            if check is reports_that_its_system_cannot_be_reached and not case.always_there:
                warnings.warn(UntriedRule(NO_OUTAGE.format(type(case.connector).__name__)), stacklevel=1)
            pytest.skip(str(reason))

    test.__doc__ = check.__doc__
    return test
