"""RecordView: any record shown as JSON, cut where it is long, without secrets, whatever it holds."""

import base64
import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.inspect.record_view import view_record
from conduit_py.record import Payload, Record
from conduit_py.testing.strategies import records


def hide(text: str) -> str:
    return text.replace("s3cret", "***")


def shown(after: Any, size_max: int = 1000) -> tuple[Any, list[str]]:
    made = view_record(Record.of(after), size_max, hide)
    return made.value["payload"]["after"], made.cut


@settings(deadline=None)
@given(records())
def test_a_record_that_fits_is_shown_in_its_json_form(record: Record) -> None:
    made = view_record(record, 1_000_000, str)

    assert made.cut == []
    assert json.loads(json.dumps(made.value)) == made.value
    assert made.value["position"] == base64.b64encode(record.position).decode()
    assert made.same_as(view_record(record.copy(), 1_000_000, str))


def test_values_of_python_are_shown_as_text() -> None:
    at = datetime(2026, 11, 16, 3, tzinfo=UTC)
    value, cut = shown({"money": Decimal("1.10"), "at": at, "raw": b"hi", "nan": float("nan"), "set": {1}, 5: None})

    assert value == {"money": "1.10", "at": "2026-11-16T03:00:00Z", "raw": "aGk=", "nan": "nan", "set": [1], "5": None}
    assert cut == []


def test_bytes_are_named_for_base64_is_text_like_any_other() -> None:
    fields = Record.of({"raw": b"hi", "text": "aGk=", "more": [1, b""]}, key=b"k")

    assert view_record(fields, 1000, hide).in_base64 == [
        "position", "key", "payload.after.raw", "payload.after.more[1]",
    ]  # fmt: skip


def test_long_texts_are_cut_and_named() -> None:
    value, cut = shown({"short": "a", "long": "x" * 100_000, "more": 1}, 100)

    assert value["short"] == "a"
    assert set(value["long"]) == {"x"}
    assert len(value["long"]) < 100
    assert cut == ["payload.after.long", "payload.after"]


def test_raw_data_is_cut_so_that_what_is_shown_can_be_decoded() -> None:
    value, cut = shown(b"0123456789" * 1000, 100)

    assert base64.b64decode(value) == (b"0123456789" * 1000)[: len(base64.b64decode(value))]
    assert 60 <= len(value) <= 104
    assert cut == ["payload.after"]


def test_two_exhibits_differ_where_they_do_not_show_it() -> None:
    first, same, other = (view_record(Record.of({"text": "x" * 5000 + end}), 100, str) for end in ("a", "a", "b"))

    assert first.value == other.value
    assert first.same_as(same)
    assert not first.same_as(other)


def test_secrets_are_taken_out_of_texts_keys_numbers_and_raw_data() -> None:
    record = Record(
        metadata={"s3cret": "as3cretb"}, key=b"\xff s3cret \x00", payload=Payload(after={"deep": [{"a": b"s3cret"}]})
    )
    text = json.dumps(view_record(record, 10_000, hide).value)

    assert "s3cret" not in text
    assert base64.b64encode(b"\xff *** \x00").decode() in text
    assert base64.b64encode(b"***").decode() in text
    assert '{"***": "a***b"}' in text
    assert view_record(Record.of({"pin": 12345678}), 100, lambda text: text.replace("12345678", "***")).value[
        "payload"
    ]["after"] == {"pin": "***"}


def test_a_secret_is_not_shown_up_to_where_it_was_cut() -> None:
    for length in range(80, 110):
        value, _ = shown({"text": "x" * length + "s3cret" * 3}, 100)

        assert "s" not in value["text"]


def test_what_holds_itself_or_very_much_takes_no_time() -> None:
    endless: list[Any] = []
    endless.append(endless)
    huge = {"ends": endless, "many": list(range(1_000_000)), "large": 1 << 100_000}
    started = time.process_time()
    value, cut = shown(huge, 2000)
    shown_seconds = time.process_time() - started
    json.dumps(huge["many"])

    # Compared with a look at all of it on the same machine.
    assert shown_seconds < time.process_time() - started - shown_seconds
    assert len(json.dumps(value)) < 10_000
    assert "payload.after.many" in cut


@settings(deadline=None)
@given(
    st.recursive(
        st.text() | st.binary() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_more_than_about_the_size_is_shown(value: Any) -> None:
    made = view_record(Record.of({"value": value}), 50, str)

    assert len(json.dumps(made.value, ensure_ascii=False)) < 50 * 8 + 400


def test_text_that_nothing_could_carry_is_written_out() -> None:
    value, cut = shown({"half": "a\ud800", "\udcff": ["\udc80"]})

    assert value == {"half": "a\\ud800", "\\udcff": ["\\udc80"]}
    assert cut == []


def test_names_that_look_the_same_are_shown_as_two() -> None:
    value, _ = shown({1: "number", "1": "text", "s3cret": 1, "***": 2})

    assert value == {"1": "number", "1'": "text", "***": 1, "***'": 2}
