"""Checkpoint: what a committed transaction still has to do, kept in the commit itself."""

from collections.abc import Sequence

import msgspec

from conduit_py.dead_letter import DeadLetter
from conduit_py.errors import EnvironmentUnfit

VERSION = 1


class Checkpoint(msgspec.Struct, frozen=True):
    """The intents of one transaction: few, and replaced by those of the next, when all of them are carried out.

    `home` is the destination that carried the commit, "" if the store did; `intents` are what staged
    destinations gave, by node; `letters` are its dead letters.
    """

    home: str = ""
    intents: dict[str, bytes] = {}
    letters: list[bytes] = []
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


def encode_letters(letters: Sequence[DeadLetter]) -> list[bytes]:
    """JSON, because it carries integers of any size; what JSON does not know becomes text, as in any letter."""
    return [_LETTER_ENCODER.encode(letter) for letter in letters]


def decode_letters(encoded: Sequence[bytes]) -> list[DeadLetter]:
    return [_LETTER_DECODER.decode(letter) for letter in encoded]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Checkpoint)
_LETTER_ENCODER = msgspec.json.Encoder(enc_hook=str)
_LETTER_DECODER = msgspec.json.Decoder(DeadLetter)


def _unreadable(pipeline: str, why: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"the checkpoint of pipeline {pipeline!r} cannot be read: {why}",
        suggestion="use the version of conduit-py that wrote it",
    )
