"""TransactionCheckpoint: the remaining work of a committed transaction, stored in the commit itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

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

T = TypeVar("T")

VERSION = 1


class TransactionCheckpoint(msgspec.Struct, frozen=True):
    """The work that a transaction leaves to do after its commit. The next commit replaces it.

    `home` is the destination that carried the commit, or "" if the store did. `intents` are those of staged
    destinations, by node. `letters` are the dead letters, and `replayed` the outcomes of letters that were sent
    again. `before` has the positions of the sources before the transaction.
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
        # Refused, not guessed: a checkpoint that is read wrongly would skip an intent or apply another.
        if checkpoint.version != VERSION:
            raise _unreadable(pipeline, f"it has version {checkpoint.version}, this release reads {VERSION}")
        return checkpoint


def without_set_back(pipeline: str, changes: Changes, positions: Mapping[str, bytes]) -> Changes:
    """Return the changes to adopt from a transaction that the store does not have yet.

    `positions` are those in the store. If one differs from where the transaction began, a user has set it since
    the crash, and it stays.
    """
    before = TransactionCheckpoint.decode(pipeline, changes.checkpoint).before
    stays = {source for source, position in before.items() if positions.get(source) != position}
    kept = {source: position for source, position in changes.positions.items() if source not in stays}
    # Only positions stay. The state and the intents of the transaction are adopted: they have happened.
    return msgspec.structs.replace(changes, positions=kept)


def encode_letters(letters: Sequence[DeadLetter]) -> list[bytes]:
    """Return the letters as bytes. A letter whose record cannot be encoded raises DeadLetterFailed."""
    return [_encode_letter(letter) for letter in letters]


def _encode_letter(letter: DeadLetter) -> bytes:
    try:
        # Called before the commit. After it, the record would be acked and its letter lost.
        return encode_dead_letter(letter)
    except RecordRefused as error:
        failed = DeadLetterFailed(
            f"a dead letter could not be stored: {error.message}; {letter.node} had refused the record: {letter.error}",
            suggestion=error.suggestion,
        )
        failed.node = letter.node
        raise failed from error


def decode_letters(encoded: Sequence[bytes]) -> list[DeadLetter]:
    """Return the letters that `encode_letters` encoded."""
    return _decode_all("dead letters", decode_dead_letter, encoded)


def encode_replays(outcomes: Sequence[SettledLetter]) -> list[bytes]:
    """Return the outcomes as bytes. A record that cannot be encoded raises DeadLetterFailed."""
    try:
        return list(map(encode_settled_letter, outcomes))
    except RecordRefused as error:
        raise DeadLetterFailed(
            f"a dead letter that was refused again could not be stored: {error.message}", suggestion=error.suggestion
        ) from error


def decode_replays(encoded: Sequence[bytes]) -> list[SettledLetter]:
    """Return the outcomes that `encode_replays` encoded."""
    return _decode_all("replayed dead letters", decode_settled_letter, encoded)


def _decode_all(what: str, decode: Callable[[bytes], T], encoded: Sequence[bytes]) -> list[T]:
    try:
        return list(map(decode, encoded))
    except (ValueError, TypeError, LookupError) as error:
        raise EnvironmentUnfit(f"a checkpoint holds {what} that cannot be read: {error}", suggestion=_HINT) from error


_HINT = "put back a copy of the state, or use the version of conduit-py that wrote it"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TransactionCheckpoint)


def _unreadable(pipeline: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"the checkpoint of pipeline {pipeline!r} cannot be read: {why}",
        suggestion=_HINT,
    )
