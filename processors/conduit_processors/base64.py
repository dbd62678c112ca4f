"""Base64 in a field: `base64.encode` makes it, `base64.decode` undoes it."""

import binascii
from typing import Any, Literal, Required, Unpack

from pydantic import Field, ValidationInfo, field_validator

from conduit_processors.field_processor import Encodable, FieldArguments, FieldOptions, FieldProcessor
from conduit_py.sdk.template import FieldPath, RecordPart, kind_of, option_error, text_of


class EncodeOptions(FieldOptions):
    """Options of base64.encode."""

    field: Encodable = Field(description="what to encode: key, payload, a field of them or of the metadata")


class EncodeArguments(FieldArguments, total=False):
    """EncodeOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]


class DecodeOptions(FieldOptions):
    """Options of base64.decode."""

    field: Encodable = Field(description="what to decode: key, payload, a field of them or of the metadata")
    type: Literal["string", "bytes"] = Field(
        default="string",
        description="what a decoded field becomes; a key or payload as a whole becomes raw bytes in any case",
    )

    @field_validator("type", mode="after")
    @classmethod
    def _fits(cls, value: str, info: ValidationInfo) -> str:
        if value == "bytes" and "field" in info.data and info.data["field"].part is RecordPart.METADATA:
            raise option_error("must be 'string' for a field of the metadata, which holds text")
        return value


class DecodeArguments(FieldArguments, total=False):
    """DecodeOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]
    type: Literal["string", "bytes"]


class Encode(FieldProcessor[EncodeOptions]):
    """Replaces bytes, text (as UTF-8), numbers and booleans (as text) by base64 text.

    The key and the payload as a whole hold it as raw bytes, a field as str. Null and absent values
    stay as they are; structured data and lists are refused.
    """

    takes_whole = gives_whole = bytes | None

    def __init__(self, **options: Unpack[EncodeArguments]) -> None:
        super().__init__(**options)

    def change(self, value: Any) -> bytes | str | None:
        if value is None:
            return None
        raw = value if isinstance(value, bytes) else self._raw(value)
        encoded = binascii.b2a_base64(raw, newline=False)
        return encoded if self.whole else encoded.decode("ascii")

    def _raw(self, value: object) -> bytes:
        if not isinstance(value, (str, int, float)):
            hint = "make it text first, for example with conduit_processors.json.Encode"
            raise self.refusal(f"cannot be written in base64: it is {kind_of(value)}", suggestion=hint)
        try:
            return text_of(value, "it").encode()
        except UnicodeEncodeError as error:
            raise self.refusal(f"the text is not valid Unicode: {error}") from None


class Decode(FieldProcessor[DecodeOptions]):
    """Replaces base64 text by what it stands for; line breaks in it are ignored.

    A field becomes text (str), or bytes with `type="bytes"`; a key or payload as a whole becomes raw
    bytes. Null and absent values stay as they are.
    """

    takes_whole = gives_whole = bytes | None
    _as_bytes: bool

    def __init__(self, **options: Unpack[DecodeArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        super().open()
        self._as_bytes = self.whole or self.options.type == "bytes"

    def change(self, value: Any) -> bytes | str | None:
        if value is None:
            return None
        raw = self._raw(value)
        return raw if self._as_bytes else self._text(raw)

    def _raw(self, value: object) -> bytes:
        if not isinstance(value, (bytes, str)):
            raise self.refusal(f"not base64 text: it is {kind_of(value)}")
        text = value.encode(errors="replace") if isinstance(value, str) else value
        try:
            return binascii.a2b_base64(text.translate(None, b"\r\n"), strict_mode=True)
        except binascii.Error as error:
            raise self.refusal(f"not valid base64: {error}") from None

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            hint = 'keep it as bytes with type="bytes"'
            raise self.refusal(f"what was decoded is not UTF-8 text: {error}", suggestion=hint) from None
