"""Durations in SQL: the text that is written is the very duration, to the microsecond, however long it is."""

from datetime import timedelta
from decimal import Decimal

import pytest
from builders import batch_of
from conduit_connectors.sql.row import NameRules, RowEncoder, TableOptions
from hypothesis import example, given
from hypothesis import strategies as st

ENCODER = RowEncoder(TableOptions(table="t"), NameRules(columns_max=10, reserved=()), int_max=None, finite=False)


def written(duration: timedelta) -> str:
    rows, refused = ENCODER.of(batch_of({"lasted": duration}))
    assert refused == {}
    [text] = rows[0].values
    assert isinstance(text, str)
    return text


@given(st.timedeltas())
@example(timedelta(days=999_999_999, microseconds=1))
@example(timedelta(days=-999_999_999, microseconds=1))
@example(timedelta.max)
def test_invariant_12_a_duration_is_written_to_the_microsecond(duration: timedelta) -> None:
    number, unit = written(duration).split(" ")

    assert unit == "seconds"
    assert Decimal(number) * 1_000_000 == duration // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0.0 seconds"),
        (timedelta(seconds=90), "90.0 seconds"),
        (timedelta(milliseconds=-1500), "-1.5 seconds"),
        (timedelta(microseconds=1), "1e-06 seconds"),
        (timedelta.max, "86399999999999.999999 seconds"),
    ],
)
def test_what_was_exact_before_is_written_as_before(duration: timedelta, text: str) -> None:
    """A duration may be a key, and the row that an earlier version wrote must be found again."""
    assert written(duration) == text
