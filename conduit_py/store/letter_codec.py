"""The one encoding of dead letters: what the store keeps, checkpoints carry and processes send each other.

Records in a letter are encoded by `record_codec`, so that they are replayed exactly as they were refused. Every
function that encodes raises RecordRefused for a record that cannot be encoded.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from conduit_py import metadata
from conduit_py.batch import MessageId, Piece
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import RecordRefused
from conduit_py.record import Record
from conduit_py.record_codec import decode_record, encode_record
from conduit_py.store.stored_letter import LetterState, Refusal, SettledLetter, StoredLetter


def encode_dead_letter(letter: DeadLetter, *, as_text: bool = False) -> bytes:
    """A letter as the pipeline wrote it. With `as_text`, a record that cannot be encoded is kept as marked text."""
    encode = _encode_or_show if as_text else encode_record
    record, elsewhere = encode(letter.record), {node: encode(each) for node, each in letter.elsewhere.items()}
    return _ENCODER.encode(
        _DeadLetter(letter.pipeline, letter.message, letter.position, record, letter.failures, letter.at, elsewhere)
    )


def _encode_or_show(record: Record) -> bytes:
    try:
        return encode_record(record)
    except RecordRefused:
        # A record that cannot be sent must not hide that it was refused, and why.
        shown = Record.of(repr(record.payload).encode(errors="replace"), position=record.position)
        shown.metadata[metadata.KEPT_AS_TEXT] = "true"
        return encode_record(shown)


def decode_dead_letter(encoded: bytes) -> DeadLetter:
    kept = _DEAD_LETTER.decode(encoded)
    record, elsewhere = decode_record(kept.record), _decode_records(kept.elsewhere)
    return DeadLetter(kept.pipeline, kept.message, kept.position, record, kept.failures, kept.at, elsewhere)


def encode_stored_letter(letter: StoredLetter) -> bytes:
    """A letter as the store has it."""
    content = encode_content(letter)
    return _ENCODER.encode(
        (letter.pipeline, letter.source, content, letter.attempts, letter.state, json.dumps(letter.queued_for))
    )


def decode_stored_letter(encoded: bytes) -> StoredLetter:
    return letter_of_row(_ANY.decode(encoded))


def encode_settled_letter(settled: SettledLetter) -> bytes:
    """What became of a letter that was replayed."""
    return _ENCODER.encode(
        _SettledLetter(settled.id, settled.turn, settled.attempts, list(map(encode_stored_letter, settled.left)))
    )


def decode_settled_letter(encoded: bytes) -> SettledLetter:
    kept = _SETTLED_LETTER.decode(encoded)
    return SettledLetter(kept.id, kept.turn, kept.attempts, list(map(decode_stored_letter, kept.left)))


ROW = "pipeline, source, letter, attempts, state, queued_for"
"""The columns of the table of letters that make a whole letter."""


def encode_content(letter: StoredLetter) -> bytes:
    """The column `letter`: everything that has no column of its own."""
    records, originals = _encode_records(letter.records), _encode_records(letter.originals)
    return _ENCODER.encode(_Content(letter.position, letter.piece, records, letter.history, originals))


def size_of(letter: StoredLetter) -> int:
    """How many bytes the letter takes in the store."""
    return len(encode_content(letter))


def letter_of_row(row: Sequence[Any]) -> StoredLetter:
    """The letter in the columns ROW."""
    pipeline, source, content, attempts, state, queued_for = row
    kept = _CONTENT.decode(content)
    return StoredLetter(
        pipeline,
        source,
        kept.position,
        kept.piece,
        _decode_records(kept.records),
        kept.history,
        attempts,
        LetterState(state),
        json.loads(queued_for),
        _decode_records(kept.originals),
    )


def _encode_records(records: Mapping[str, Record]) -> dict[str, bytes]:
    return {node: encode_record(record) for node, record in records.items()}


def _decode_records(encoded: Mapping[str, bytes]) -> dict[str, Record]:
    return {node: decode_record(record) for node, record in encoded.items()}


# These stand in databases and checkpoints: a new field goes to the end and has a default.


class _DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    pipeline: str
    message: MessageId
    position: bytes
    record: bytes
    failures: list[Failure]
    at: float
    elsewhere: dict[str, bytes]


class _Content(msgspec.Struct, frozen=True):
    position: bytes
    piece: Piece
    records: dict[str, bytes]
    history: list[Refusal]
    originals: dict[str, bytes] = {}


class _SettledLetter(msgspec.Struct, frozen=True, array_like=True):
    id: str
    turn: int
    attempts: int
    left: list[bytes]


_ENCODER = msgspec.msgpack.Encoder()
_ANY = msgspec.msgpack.Decoder()
_DEAD_LETTER = msgspec.msgpack.Decoder(_DeadLetter)
_CONTENT = msgspec.msgpack.Decoder(_Content)
_SETTLED_LETTER = msgspec.msgpack.Decoder(_SettledLetter)
