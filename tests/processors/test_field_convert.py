"""field.convert: the table of the README, cell by cell, and what it refuses."""

import contextlib
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from conduit_processors.field import Convert
from conduit_processors.field.conversion import to_decimal, to_float, to_int, to_string, to_time
from conduit_processors.field.convert import PythonType, TypeName
from hypothesis import assume, given
from hypothesis import strategies as st

from conduit_py.sdk import Record, RecordRefused

Run = Callable[..., Any]
Refusal = Callable[..., RecordRefused]
NOON = dt.datetime(2023, 1, 18, 17, 9, 37, 225877, tzinfo=dt.UTC)
NOON_NANOSECONDS = 1674061777225877000
BIG = 123456789012345678901234567890
with pytest.raises(ValueError, match="day") as no_such_day:
    dt.date(2026, 2, 31)
NO_SUCH_DAY = str(no_such_day.value)
"""What this Python says, which differs between versions."""


@pytest.mark.parametrize(
    ("type_", "value", "converted"),
    [
        ("string", "text", "text"),
        ("string", b"text", "text"),
        ("string", BIG, str(BIG)),
        ("string", 12.5, "12.5"),
        ("string", 5.0, "5"),
        ("string", 1e21, "1" + "0" * 21),
        ("string", True, "true"),
        ("string", NOON, "2023-01-18T17:09:37.225877Z"),
        ("string", Decimal("1.50"), "1.50"),
        ("int", "12", 12),
        ("int", b"-7", -7),
        ("int", "+7", 7),
        ("int", str(BIG), BIG),
        ("int", BIG, BIG),
        ("int", 12.0, 12),
        ("int", 1e22, 10**22),
        ("int", True, 1),
        ("int", Decimal("12.00"), 12),
        ("int", NOON, NOON_NANOSECONDS),
        ("int", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), -1000),
        ("float", "0.1", 0.1),
        ("float", "1e3", 1000.0),
        ("float", ".5", 0.5),
        ("float", 2**60, float(2**60)),
        ("float", False, 0.0),
        ("float", Decimal("0.1"), 0.1),
        ("float", 12.5, 12.5),
        ("bool", True, True),
        ("bool", 1, True),
        ("bool", 0.0, False),
        ("bool", Decimal(1), True),
        *[("bool", word, True) for word in ("1", "t", "T", "TRUE", "true", "True")],
        *[("bool", word, False) for word in ("0", "f", "F", "FALSE", "false", "False")],
        ("time", "2023-01-18T17:09:37.225877Z", NOON),
        ("time", "2023-01-18T18:09:37.225877000+01:00", NOON),
        ("time", NOON_NANOSECONDS, NOON),
        ("time", str(NOON_NANOSECONDS), NOON),
        ("time", NOON, NOON),
        ("time", 1e18, dt.datetime(2001, 9, 9, 1, 46, 40, tzinfo=dt.UTC)),
        ("decimal", "1.50", Decimal("1.50")),
        ("decimal", BIG, Decimal(BIG)),
        ("decimal", 0.1, Decimal("0.1")),
        ("decimal", True, Decimal(1)),
        ("decimal", Decimal("1.50"), Decimal("1.50")),
        *[(type_, None, None) for type_ in ("string", "int", "float", "bool", "time", "decimal")],
    ],
)
def test_a_value_that_fits_is_converted(run: Run, type_: TypeName, value: Any, converted: Any) -> None:
    result = run(Convert(field="x", type=type_), Record.of({"x": value})).payload["x"]

    assert result == converted
    assert type(result) is type(converted)
    assert str(result) == str(converted) or type_ == "time"


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("string", b"\xff", "the bytes are not UTF-8 text"),
        ("string", {"a": 1}, "it is structured data"),
        ("string", [1], "it is a list"),
        ("string", math.nan, "nan is not a finite number"),
        ("int", "12.7", "'12.7' is not a whole number"),
        ("int", "12.0", "'12.0' is not a whole number"),
        ("int", " 12", "' 12' is not a whole number"),
        ("int", "1_000", "'1_000' is not a whole number"),
        ("int", "x" * 100, f"'{'x' * 60}…' is not a whole number"),
        ("int", 12.7, "12.7 is not a whole number"),
        ("int", math.inf, "inf is not a finite number"),
        ("int", Decimal("NaN"), "NaN is not a finite number"),
        ("int", Decimal("0.5"), "0.5 is not a whole number"),
        ("int", dt.datetime(2026, 1, 31), "2026-01-31T00:00:00 has no time zone"),  # noqa: DTZ001
        ("int", {}, "it is structured data"),
        (
            "float",
            "9007199254740993",
            "'9007199254740993' has more digits than a float keeps; decimal keeps them all",
        ),
        ("float", 2**53 + 1, "'9007199254740993' has more digits than a float keeps; decimal keeps them all"),
        (
            "float",
            Decimal("0.12345678901234567890"),
            "'0.12345678901234567890' has more digits than a float keeps; decimal keeps them all",
        ),
        ("float", "1e400", "'1E+400' is beyond the range of a float"),
        ("float", "nan", "'nan' is not a number"),
        ("float", "1,5", "'1,5' is not a number"),
        ("float", NOON, "it is a time"),
        ("bool", "yes", "'yes' is none of 1, t, T, TRUE, true, True, 0, f, F, FALSE, false, False"),
        ("bool", 2, "2 is neither 1 nor 0"),
        ("bool", [], "it is a list"),
        ("time", "yesterday", "'yesterday' is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
        ("time", "2026-01-31 09:30:00Z", "'2026-01-31 09:30:00Z' is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
        ("time", "2026-01-31T09:30:00", "'2026-01-31T09:30:00' is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
        ("time", "2026-02-31T09:30:00Z", f"2026-02-31T09:30:00Z is not a time: {NO_SUCH_DAY}"),
        (
            "time",
            "2026-01-31T09:30:00.0000001Z",
            "2026-01-31T09:30:00.0000001Z is finer than a microsecond, and a datetime keeps no more",
        ),
        ("time", 1, "1 nanoseconds are not whole microseconds, and a datetime keeps no more"),
        ("time", 10**24, f"{10**24} nanoseconds are outside the years 1 to 9999"),
        ("time", 10**40, f"{10**40} nanoseconds are outside the years 1 to 9999"),
        ("time", True, "it is a boolean"),
        ("time", 0.5, "0.5 is not a whole number"),
        ("decimal", "Infinity", "'Infinity' is not a number"),
        ("decimal", math.inf, "inf is not a finite number"),
        ("decimal", Decimal("Infinity"), "Infinity is not a finite number"),
        ("decimal", NOON, "it is a time"),
    ],
)
def test_a_value_that_would_lose_something_is_refused(
    refusal: Refusal, type_: TypeName, value: Any, reason: str
) -> None:
    message = refusal(Convert(field="x", type=type_), Record.of({"x": value})).message

    assert message == f".Payload.After.x: cannot become {type_}: {reason}"


@given(st.integers())
def test_integers_of_any_size_survive_text_and_decimal(number: int) -> None:
    assert to_int(to_string(number)) == number
    assert to_int(to_decimal(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_text_and_decimal(number: float) -> None:
    assert to_float(to_string(number)) == number
    assert to_float(to_decimal(number)) == number


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40))
def test_a_float_is_the_number_it_was_made_from_or_looks_like_it(number: int | Decimal) -> None:
    try:
        converted = to_float(number)
    except ValueError:
        assume(False)

    assert converted == number or Decimal(repr(converted)) == number


@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_times_survive_nanoseconds_and_text(time: dt.datetime) -> None:
    assert to_time(to_int(time)) == time
    assert to_time(to_string(time)) == time


@given(st.text() | st.floats() | st.binary())
def test_any_value_is_converted_or_refused(value: str | float | bytes) -> None:
    for type_ in ("string", "int", "float", "bool", "time", "decimal"):
        convert = Convert(field="x", type=type_)
        convert.open()
        with contextlib.suppress(RecordRefused):
            assert convert.process(Record.of({"x": value})).payload["x"] is not None


@pytest.mark.parametrize(
    ("python", "name"),
    [(str, "string"), (int, "int"), (float, "float"), (bool, "bool"), (dt.datetime, "time"), (Decimal, "decimal")],
)
def test_the_type_may_be_a_python_type(python: PythonType, name: str) -> None:
    assert Convert(field="x", type=python).options.type == name


def test_problems_in_the_options_are_all_reported() -> None:
    convert = Convert(field=".Metadata.x", type="uuid")  # type: ignore[arg-type]

    assert [(problem.path, problem.message) for problem in convert.problems] == [
        (
            "field",
            "must be a field path such as .Payload.After.name "
            "(it must name a field inside .Key, .Payload.Before or .Payload.After), not '.Metadata.x'",
        ),
        ("type", "Input should be 'string', 'int', 'float', 'bool', 'time' or 'decimal', not 'uuid'"),
    ]
