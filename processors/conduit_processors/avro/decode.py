"""`avro.decode` reads Avro whose schema is in a registry."""

from pathlib import Path
from typing import ClassVar, Literal, Required, Self, Unpack

from pydantic import Field, PositiveInt, model_validator

from conduit_processors.avro.codec import AvroCodec, ParsedSchema, parse
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from conduit_processors.registry.options import RegistryArguments, RegistryOptions
from conduit_processors.registry.processors import Codec, RegistryDecode
from conduit_py.sdk import FatalError
from conduit_py.sdk.template import option_error


class AvroDecodeOptions(RegistryOptions):
    """Options of avro.decode."""

    reader_schema_file: Path | None = Field(
        default=None, description="the schema to read with, whatever schema the data was written with"
    )
    reader_subject: str | None = Field(
        default=None, min_length=1, description="the subject of the schema to read with, in place of a file"
    )
    reader_version: PositiveInt | Literal["latest"] = Field(
        default="latest", description="the version of reader_subject; latest: as of the first record of a run"
    )

    @model_validator(mode="after")
    def _check_reader(self) -> Self:
        if self.reader_schema_file is not None and self.reader_subject is not None:
            raise option_error("the schema to read with comes from reader_schema_file or reader_subject, not from both")
        return self


class AvroDecodeArguments(RegistryArguments, total=False):
    """AvroDecodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]
    reader_schema_file: str | Path | None
    reader_subject: str | None
    reader_version: int | Literal["latest"]


class Decode(RegistryDecode[AvroDecodeOptions]):
    """Replaces raw data in Avro by its value, with the schema whose id the data begins with.

    Logical types are exact: Decimal, date, time, datetime and UUID. Data that is cut, has bytes after its end, or is no
    encoding of its schema refuses the record. A value that is no record becomes raw data in a key or payload as a
    whole.
    """

    kind = "AVRO"
    requires: ClassVar = {"fastavro": "conduit-dataflow[avro]"}

    def __init__(self, **options: Unpack[AvroDecodeArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        super().open()
        self._reader: ParsedSchema | None = None
        path = self.options.reader_schema_file
        if path is not None:
            try:
                self._reader = parse(path.read_text())
            except (OSError, UnicodeDecodeError, SchemaUnusable) as error:
                raise FatalError(f"{path} cannot be used: {error}", suggestion="check reader_schema_file") from error

    async def compile(self, schema: RegisteredSchema) -> Codec:
        if self._reader is None and self.options.reader_subject is not None:
            self._reader = await self._reader_of(self.options.reader_subject)
        return AvroCodec(parse(schema.text, schema.types), self._reader)

    async def _reader_of(self, subject: str) -> ParsedSchema:
        try:
            schema = await self._client.schema_by_version(subject, self.options.reader_version)
            return parse(schema.text, schema.types)
        except SchemaUnusable as unusable:
            raise FatalError(f"the schema to read with: {unusable}", suggestion="check reader_subject") from unusable
