"""JSON in a field: `json.decode` makes it structured data, `json.encode` makes it text again."""

from typing import Any, Required, Unpack

from pydantic import Field

from conduit_processors.field_processor import FieldArguments, FieldOptions, FieldProcessor, Structurable
from conduit_py.sdk import DuplicateKeys, RecordRefused, Structured, decode_json, encode_json
from conduit_py.sdk.template import FieldPath, kind_of


class JsonOptions(FieldOptions):
    """What json.decode and json.encode work on."""

    field: Structurable = Field(
        description="what to decode or encode: .Key, .Payload.Before, .Payload.After or a field"
    )


class JsonArguments(FieldArguments, total=False):
    """JsonOptions as a caller writes them, for editors and type checkers."""

    field: Required[str | FieldPath]


class DecodeOptions(JsonOptions):
    """Options of json.decode."""

    duplicate_keys: DuplicateKeys = Field(
        default="refuse",
        description="what to do with an object that has a key twice: refuse the record, or keep the last value",
    )


class DecodeArguments(JsonArguments, total=False):
    """DecodeOptions as a caller writes them, for editors and type checkers."""

    duplicate_keys: DuplicateKeys


class Decode(FieldProcessor[DecodeOptions]):
    """Replaces JSON text (bytes or str) by its value, integers of any size exact.

    What is structured already, null or absent stays as it is. The key and the payload as a whole hold
    only objects, so JSON of another kind is refused there. An object that has a key twice is refused, unless
    `duplicate_keys="last"` is set.
    """

    gives_whole = Structured | None

    def __init__(self, **options: Unpack[DecodeArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        super().open()
        self._duplicate_keys: DuplicateKeys = self.options.duplicate_keys

    def change(self, value: Any) -> Any:
        if type(value) is not bytes and not isinstance(value, (bytes, str)):
            if value is None or isinstance(value, dict):
                return value
            raise self.refusal(f"not JSON text: it is {kind_of(value)}")
        try:
            decoded = decode_json(value, duplicate_keys=self._duplicate_keys)
        except RecordRefused as refused:
            raise self.refusal(refused.message) from refused
        # Set as a whole, text would become raw bytes again, which look like undecoded JSON.
        if type(decoded) is dict or not self.whole or decoded is None:
            return decoded
        raise self.refusal(f"its JSON is {kind_of(decoded)} and not an object")


class Encode(FieldProcessor[JsonOptions]):
    """Replaces a value by its JSON: raw bytes for the key and the payload as a whole, text (str) for a field.

    Null and absent values stay as they are. What JSON cannot say (NaN, raw bytes) is refused; inside
    structured data bytes become base64 text, datetimes RFC 3339 text and Decimals text.
    """

    takes_whole = Structured | None
    gives_whole = bytes | None

    def __init__(self, **options: Unpack[JsonArguments]) -> None:
        super().__init__(**options)

    def change(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, bytes):
            hint = "encode them first with conduit_processors.base64.Encode"
            raise self.refusal("raw bytes have no JSON", suggestion=hint)
        try:
            encoded = encode_json(value)
        except RecordRefused as refused:
            raise self.refusal(refused.message) from refused
        return encoded if self.whole else encoded.decode()
