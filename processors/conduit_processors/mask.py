"""`mask.hash` replaces values by keyed hashes, `mask.redact` by a text: for personal data."""

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Required, TypedDict, TypeVar, Unpack

import re2
from pydantic import BeforeValidator, Field, SecretStr, field_validator

from conduit_processors.field_processor import split_field_list
from conduit_py.sdk import Options, Processor, Record, encode_json
from conduit_py.sdk.template import FieldPath, RecordPart, field_path_error, option_error

SECRET_LENGTH_MIN = 16


class MaskOptions(Options):
    """Options of every mask."""

    fields: Annotated[list[FieldPath], BeforeValidator(split_field_list)] = Field(
        min_length=1, description="the fields with personal data; a record without one of them stays as it is there"
    )

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: list[FieldPath]) -> list[FieldPath]:
        for field in fields:
            if not field.names or field.part in (RecordPart.RECORD, RecordPart.PAYLOAD):
                raise field_path_error(f"{field} is no single field")
        return fields


class MaskArguments(TypedDict, total=False):
    """MaskOptions as a caller writes them, for editors and type checkers."""

    fields: Required[Sequence[str | FieldPath] | str]


MaskOptionsT = TypeVar("MaskOptionsT", bound=MaskOptions)


class _Mask(Processor[MaskOptionsT], ABC):
    blocking = False

    def process(self, record: Record) -> Record:
        # All values before the first is replaced: a record that is refused stays as it came.
        values = [(field, field.find(record)) for field in self.options.fields]
        masked = [(field, self.mask(value)) for field, value in values if value is not None]
        for field, value in masked:
            field.set(record, value)
        return record

    @abstractmethod
    def mask(self, value: Any) -> str:
        """Return what stands in place of a value that is not null."""


class HashOptions(MaskOptions):
    """Options of mask.hash."""

    secret: SecretStr = Field(
        min_length=SECRET_LENGTH_MIN,
        description="the key of the hash; keep it for as long as hashes must match",
    )
    length: int = Field(default=64, ge=16, le=64, description="how many hexadecimal digits of the hash are kept")


class HashArguments(MaskArguments, total=False):
    """HashOptions as a caller writes them, for editors and type checkers."""

    secret: Required[str | SecretStr]
    length: int


class Hash(_Mask[HashOptions]):
    """Replaces values by their HMAC-SHA256 in hexadecimal digits. Equal values have equal hashes, also in other fields.

    Text and bytes are hashed as they are, everything else as its JSON. Null stays null.
    """

    def __init__(self, **options: Unpack[HashArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        self._keyed = hmac.new(self.options.secret.get_secret_value().encode(), digestmod=hashlib.sha256)

    def mask(self, value: Any) -> str:
        digest = self._keyed.copy()
        if isinstance(value, str):
            value = value.encode(errors="surrogatepass")
        digest.update(value if isinstance(value, bytes) else encode_json(value))
        return digest.hexdigest()[: self.options.length]


class RedactOptions(MaskOptions):
    """Options of mask.redact."""

    replacement: str = Field(default="***", description="what stands in place of a value, or of what the pattern finds")
    keep_last: int = Field(default=0, ge=0, le=8, description="how many characters at the end of a text stay")
    pattern: str | None = Field(
        default=None, min_length=1, description="a regular expression (RE2): only what it finds in a text is replaced"
    )

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re2.compile(pattern)
            except re2.error as error:
                raise option_error(f"must be a regular expression ({error})") from None
        return pattern


class RedactArguments(MaskArguments, total=False):
    """RedactOptions as a caller writes them, for editors and type checkers."""

    replacement: str
    keep_last: int
    pattern: str | None


class Redact(_Mask[RedactOptions]):
    """Replaces values by a text. With `pattern`, only what it finds in a text; values that are no text go as a whole.

    With `keep_last` the end of a text stays, unless that is a third of it or more. Null stays null.
    """

    def __init__(self, **options: Unpack[RedactArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        pattern = self.options.pattern
        self._pattern = None if pattern is None else re2.compile(pattern)

    def mask(self, value: Any) -> str:
        options = self.options
        if not isinstance(value, str):
            return options.replacement
        if self._pattern is not None:
            # A function: in a text, RE2 would take \1 for a group.
            found: str = self._pattern.sub(lambda match: options.replacement, value)
            return found
        kept = value[len(value) - options.keep_last :] if 3 * options.keep_last < len(value) else ""
        return options.replacement + kept
