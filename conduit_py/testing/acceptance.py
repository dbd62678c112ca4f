"""The acceptance suite: one line in a test file makes a connector pass, or fail, all rules of the SDK.

    def orders(tmp_path):                                  # any pytest fixtures, and `yield` to clean up
        path = tmp_path / "orders.jsonl"
        path.write_text('{"n": 1}\\n{"n": 2}\\n{"n": 3}\\n')
        return MySource(path=path)

    TestMySource = source_acceptance(orders)

    def lake(tmp_path):                                    # the destination, and how to read back what it holds
        path = tmp_path / "lake.jsonl"
        return MyDestination(path=path), lambda: [json.loads(line) for line in path.open()]

    TestMyDestination = destination_acceptance(lake)

Every rule becomes a test of its own, on a connector of its own. The rules themselves are plain
functions, in `source_checks` and `destination_checks`, for those who use another test runner.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conduit_py.record import Record
from conduit_py.testing.connector_driver import OPTION_CHECKS, DestinationCase, DoesNotApply, SourceCase, run_check
from conduit_py.testing.destination_checks import DESTINATION_CHECKS, STAGED_CHECKS
from conduit_py.testing.event_log import numbered_record
from conduit_py.testing.source_checks import SOURCE_CHECKS


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

    That function returns the `payload.after` of every record stored, in order. `sample(n)` makes the
    nth record to write, for destinations that do not take just any; `refused` is a record that the
    destination must refuse, if there can be one.
    """

    def case_of(made: Any) -> DestinationCase:
        connector, stored = made
        return DestinationCase(connector, stored, sample, refused)

    return _suite("DestinationAcceptance", make, DESTINATION_CHECKS + STAGED_CHECKS, case_of, seconds)


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
        try:
            run_check(check, case_of(made), seconds=seconds)
        except DoesNotApply as reason:
            pytest.skip(str(reason))

    test.__doc__ = check.__doc__
    return test
