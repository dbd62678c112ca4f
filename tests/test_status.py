"""The error of a pipeline, kept as text that every store and answer can carry."""

import msgspec
import pytest

from conduit_py.errors import FatalError
from conduit_py.status import LastError


@pytest.mark.parametrize(
    ("error", "message", "suggestion"),
    [
        (FatalError("no file a\udcff", suggestion="make \udcff"), "no file a\\udcff", "make \\udcff"),
        (ValueError("half of \ud83d"), "ValueError: half of \\ud83d", None),
        (FatalError("ends at 🙂"), "ends at 🙂", None),
    ],
)
def test_an_error_that_quotes_half_a_character_can_be_kept(
    error: Exception, message: str, suggestion: str | None
) -> None:
    kept = LastError.of(error)

    assert (kept.message, kept.suggestion) == (message, suggestion)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=LastError) == kept
