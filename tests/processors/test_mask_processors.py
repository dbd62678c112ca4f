"""mask.hash and mask.redact: what stands in place of personal data, and that nothing of it stays."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest
from conduit_processors import mask
from hypothesis import given
from hypothesis import strategies as st

from conduit_py.record import Record
from conduit_py.sdk import Processor, RecordRefused

SECRET = "a secret of some length"
Run = Callable[[Processor[Any], Record], Any]


def test_a_hash_is_keyed_and_the_same_for_the_same_value(run: Run) -> None:
    record = Record.of({"email": "ann@example.org", "mail": b"ann@example.org", "id": 7, "none": None})

    masked = run(mask.Hash(fields=["email", "mail", "id", "none", "missing"], secret=SECRET), record)

    expected = hmac.new(SECRET.encode(), b"ann@example.org", hashlib.sha256).hexdigest()
    assert masked.payload.after == {
        "email": expected,
        "mail": expected,
        "id": hmac.new(SECRET.encode(), b"7", hashlib.sha256).hexdigest(),
        "none": None,
    }
    assert (
        run(mask.Hash(fields="email", secret="b" * 16, length=16), Record.of({"email": "x"})).payload["email"]
        != (run(mask.Hash(fields="email", secret="c" * 16, length=16), Record.of({"email": "x"})).payload["email"])
    )


def test_a_secret_is_not_shown_and_must_be_long() -> None:
    assert SECRET not in repr(mask.Hash(fields="a", secret=SECRET).options)
    [problem] = mask.Hash(fields="a", secret="short").problems

    assert problem.path == "secret"
    assert "short" not in problem.message


@given(st.text(), st.integers(0, 8))
def test_redacted_text_keeps_at_most_a_third(text: str, keep: int) -> None:
    processor = mask.Redact(fields="t", keep_last=keep).fresh()
    processor.open()

    masked = processor.process(Record.of({"t": text})).payload["t"]

    kept = masked.removeprefix("***")
    assert text.endswith(kept)
    assert 3 * len(kept) <= len(text)


def test_what_a_pattern_finds_is_replaced_in_text_and_all_else_as_a_whole(run: Run) -> None:
    processor = mask.Redact(fields="note,list", pattern=r"[\w.]+@[\w.]+", replacement=r"<\1 mail>")

    masked = run(processor, Record.of({"note": "ask ann@example.org, not bob@b.de", "list": ["ann@example.org"]}))

    assert masked.payload.after == {"note": r"ask <\1 mail>, not <\1 mail>", "list": r"<\1 mail>"}


def test_a_value_without_json_refuses_the_record_unchanged(
    refusal: Callable[[Processor[Any], Record], RecordRefused],
) -> None:
    error = refusal(mask.Hash(fields="a,b", secret=SECRET), Record.of({"a": "x", "b": float("nan")}))

    assert "cannot be written as JSON" in str(error)


@pytest.mark.parametrize("field", [".Payload.After", ".", ".Key"])
def test_only_single_fields_are_masked(field: str) -> None:
    [problem] = mask.Redact(fields=[field]).problems

    assert "no single field" in problem.message


def test_a_wrong_pattern_is_a_problem() -> None:
    [problem] = mask.Redact(fields="a", pattern="(").problems

    assert "must be a regular expression" in problem.message
