"""Checkpoint: what a committed transaction still has to do, kept in the commit itself."""

from collections.abc import Mapping, Sequence

import msgspec

from conduit_py.batch import MessageId
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.errors import DeadLetterFailed, EnvironmentUnfit, RecordRefused
from conduit_py.record_codec import decode_record, encode_record
from conduit_py.store.claim import Changes
from conduit_py.store.letter_table import SettledLetter, decode_letter, encode_letter

VERSION = 1


class Checkpoint(msgspec.Struct, frozen=True):
    """The intents of one transaction: few, and replaced by those of the next, when all of them are carried out.

    `home` is the destination that carried the commit, "" if the store did; `intents` are what staged
    destinations gave, by node; `letters` are its dead letters; `replayed` is what became of the letters that
    were sent again in it. `before` has the positions from which its sources came.
    """

    home: str = ""
    intents: dict[str, bytes] = {}
    letters: list[bytes] = []
    replayed: list[bytes] = []
    before: dict[str, bytes | None] = {}
    version: int = VERSION

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, pipeline: str, encoded: bytes | None) -> "Checkpoint":
        if encoded is None:
            return cls()
        try:
            checkpoint = _DECODER.decode(encoded)
        except msgspec.DecodeError as error:
            raise _unreadable(pipeline, str(error)) from error
        if checkpoint.version != VERSION:
            raise _unreadable(pipeline, f"it has version {checkpoint.version}, known is {VERSION}")
        return checkpoint


def without_set_back(pipeline: str, changes: Changes, positions: Mapping[str, bytes]) -> Changes:
    """What to adopt of a transaction that the store does not have yet, if these are the positions in the store.

    A source that is not where the transaction found it was set there by hand since, and stays there.
    """
    before = Checkpoint.decode(pipeline, changes.checkpoint).before
    stays = {source for source, position in before.items() if positions.get(source) != position}
    kept = {source: position for source, position in changes.positions.items() if source not in stays}
    return msgspec.structs.replace(changes, positions=kept)


class _PackedLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter whose records come out again as they were, Python values included."""

    pipeline: str
    message: MessageId
    position: bytes
    record: bytes
    failures: list[Failure]
    at: float
    elsewhere: dict[str, bytes]


def encode_letters(letters: Sequence[DeadLetter]) -> list[bytes]:
    """The letters as bytes. One whose record cannot be kept raises DeadLetterFailed."""
    return [_encode_letter(letter) for letter in letters]


def _encode_letter(letter: DeadLetter) -> bytes:
    try:
        record, elsewhere = (
            encode_record(letter.record),
            {node: encode_record(each) for node, each in letter.elsewhere.items()},
        )
    except RecordRefused as error:
        failed = DeadLetterFailed(
            f"a dead letter could not be kept: {error.message}; {letter.node} had refused the record: {letter.error}",
            suggestion=error.suggestion,
        )
        failed.node = letter.node
        raise failed from error
    message, position, failures, at = letter.message, letter.position, letter.failures, letter.at
    return _ENCODER.encode(_PackedLetter(letter.pipeline, message, position, record, failures, at, elsewhere))


def decode_letters(encoded: Sequence[bytes]) -> list[DeadLetter]:
    """The letters of which `encode_letters` made these bytes."""
    return [_decode_letter(_LETTER_DECODER.decode(each)) for each in encoded]


def _decode_letter(packed: _PackedLetter) -> DeadLetter:
    elsewhere = {node: decode_record(each) for node, each in packed.elsewhere.items()}
    message, position, failures = packed.message, packed.position, packed.failures
    return DeadLetter(packed.pipeline, message, position, decode_record(packed.record), failures, packed.at, elsewhere)


class _PackedSettled(msgspec.Struct, frozen=True, array_like=True):
    """What became of a letter that was sent again."""

    id: str
    turn: int
    attempts: int
    left: list[bytes]


def encode_replays(outcomes: Sequence[SettledLetter]) -> list[bytes]:
    """The outcomes as bytes. One with a record that cannot be kept raises DeadLetterFailed."""
    try:
        return [
            _ENCODER.encode(_PackedSettled(each.id, each.turn, each.attempts, list(map(encode_letter, each.left))))
            for each in outcomes
        ]
    except RecordRefused as error:
        raise DeadLetterFailed(
            f"a dead letter that was refused again could not be kept: {error.message}", suggestion=error.suggestion
        ) from error


def decode_replays(encoded: Sequence[bytes]) -> list[SettledLetter]:
    """The outcomes of which `encode_replays` made these bytes."""
    packed = map(_SETTLED_DECODER.decode, encoded)
    return [SettledLetter(each.id, each.turn, each.attempts, list(map(decode_letter, each.left))) for each in packed]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Checkpoint)
_LETTER_DECODER = msgspec.msgpack.Decoder(_PackedLetter)
_SETTLED_DECODER = msgspec.msgpack.Decoder(_PackedSettled)


def _unreadable(pipeline: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"the checkpoint of pipeline {pipeline!r} cannot be read: {why}",
        suggestion="use the version of conduit-py that wrote it",
    )
