"""Dead letters are encoded in one way, and what earlier versions wrote is still read."""

from typing import Any

import pytest

from conduit_py import metadata
from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.store.letter_codec import (
    decode_dead_letter,
    decode_settled_letter,
    decode_stored_letter,
    encode_dead_letter,
    encode_settled_letter,
    encode_stored_letter,
)
from conduit_py.store.stored_letter import SettledLetter, StoredLetter

FAILURES = [Failure("out", "no"), Failure("log", "full", 2)]


def letter(value: Any = 2**70) -> DeadLetter:
    record = Record.of({"n": value}, position=b"7")
    return DeadLetter("p", MessageId("s", 3, (1,)), b"7", record, list(FAILURES), 5.0, {"log": Record.of(b"raw")})


STORED = StoredLetter.of(letter()).for_replay(["out"])
SETTLED = SettledLetter(STORED.id, 4, 1, [STORED])


def test_letters_come_back_as_they_were() -> None:
    assert decode_dead_letter(encode_dead_letter(letter())) == letter()
    assert decode_stored_letter(encode_stored_letter(STORED)) == STORED
    assert decode_settled_letter(encode_settled_letter(SETTLED)) == SETTLED


def test_a_record_that_cannot_be_encoded_is_refused_or_kept_as_text() -> None:
    with pytest.raises(RecordRefused, match=r"payload\.after\.n is a builtins\.object"):
        encode_dead_letter(letter(object()))

    kept = decode_dead_letter(encode_dead_letter(letter(object()), as_text=True))

    assert isinstance(kept.record.payload.after, bytes)
    assert b"<object object at" in kept.record.payload.after
    assert (kept.record.position, kept.record.metadata) == (b"7", {metadata.KEPT_AS_TEXT: "true"})
    assert kept.elsewhere == letter().elsewhere


OLD_RECORD = b"\xc4)\x01\x96\xc4\x017\xa6create\x80\xc0\xc0\x81\xa1n\xc7\x14\x010x400000000000000000"
OLD_RAW = b"\xa3log\xc4\x13\x01\x96\xc4\x00\xa6create\x80\xc0\xc0\xc4\x03raw"
OLD_STORED = (
    b"\x96\xa1p\xa1s\xc4\xda\x85\xa8position\xc4\x017\xa5piece\x91\x01\xa7records\x82\xa3out"
    + OLD_RECORD
    + OLD_RAW
    + b"\xa7"
    b"history\x92\x85\xa4node\xa3out\xa5error\xa2no\xa2at\xcb@\x14\x00\x00\x00\x00\x00\x00\xa7attempt\x01\xa5tries\x01"
    b"\x85\xa4node\xa3log\xa5error\xa4full\xa2at\xcb@\x14\x00\x00\x00\x00\x00\x00\xa7attempt\x01\xa5tries\x02"
    b'\xa9originals\x80\x01\xa6queued\xa7["out"]'
)


def test_letters_of_earlier_versions_are_read() -> None:
    in_checkpoint = (
        b"\x97\xa1p\x93\xa1s\x03\x91\x01\xc4\x017"
        + OLD_RECORD
        + b"\x92\x83\xa4node\xa3out\xa5error\xa2no\xa7attempt\x01"
        b"\x83\xa4node\xa3log\xa5error\xa4full\xa7attempt\x02\xcb@\x14\x00\x00\x00\x00\x00\x00\x81" + OLD_RAW
    )

    assert decode_dead_letter(in_checkpoint) == letter()
    assert decode_stored_letter(OLD_STORED) == STORED
    assert decode_settled_letter(b"\x94\xb0a5dwi5iipe75xhwl\x04\x01\x91\xc4\xf1" + OLD_STORED) == SETTLED
