"""TransactionCheckpoint: what a committed transaction still has to do, kept in the commit itself."""

from collections.abc import Mapping, Sequence

import msgspec

from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import DeadLetterFailed, EnvironmentUnfit, RecordRefused
from conduit_py.store.claim import Changes
from conduit_py.store.letter_codec import (
    decode_dead_letter,
    decode_settled_letter,
    encode_dead_letter,
    encode_settled_letter,
)
from conduit_py.store.stored_letter import SettledLetter

VERSION = 1


class TransactionCheckpoint(msgspec.Struct, frozen=True):
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
    def decode(cls, pipeline: str, encoded: bytes | None) -> "TransactionCheckpoint":
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
    before = TransactionCheckpoint.decode(pipeline, changes.checkpoint).before
    stays = {source for source, position in before.items() if positions.get(source) != position}
    kept = {source: position for source, position in changes.positions.items() if source not in stays}
    return msgspec.structs.replace(changes, positions=kept)


def encode_letters(letters: Sequence[DeadLetter]) -> list[bytes]:
    """The letters as bytes. One whose record cannot be encoded raises DeadLetterFailed."""
    return [_encode_letter(letter) for letter in letters]


def _encode_letter(letter: DeadLetter) -> bytes:
    try:
        return encode_dead_letter(letter)
    except RecordRefused as error:
        failed = DeadLetterFailed(
            f"a dead letter could not be kept: {error.message}; {letter.node} had refused the record: {letter.error}",
            suggestion=error.suggestion,
        )
        failed.node = letter.node
        raise failed from error


def decode_letters(encoded: Sequence[bytes]) -> list[DeadLetter]:
    """The letters of which `encode_letters` made these bytes."""
    return list(map(decode_dead_letter, encoded))


def encode_replays(outcomes: Sequence[SettledLetter]) -> list[bytes]:
    """The outcomes as bytes. One with a record that cannot be encoded raises DeadLetterFailed."""
    try:
        return list(map(encode_settled_letter, outcomes))
    except RecordRefused as error:
        raise DeadLetterFailed(
            f"a dead letter that was refused again could not be kept: {error.message}", suggestion=error.suggestion
        ) from error


def decode_replays(encoded: Sequence[bytes]) -> list[SettledLetter]:
    """The outcomes of which `encode_replays` made these bytes."""
    return list(map(decode_settled_letter, encoded))


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TransactionCheckpoint)


def _unreadable(pipeline: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"the checkpoint of pipeline {pipeline!r} cannot be read: {why}",
        suggestion="use the version of conduit-py that wrote it",
    )
