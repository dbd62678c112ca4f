"""RegistryDecode and RegistryEncode: replace a field of each record of a batch with a codec of a registered schema."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

import trio

from conduit_processors.field_processor import OneFieldProcessor
from conduit_processors.registry.client import RegisteredSchema, RegistryClient, SchemaUnusable
from conduit_processors.registry.options import RegistryEncodeOptions, RegistryOptions
from conduit_processors.registry.wire_format import HEADER_SIZE, header, read_schema_id
from conduit_py.sdk import (
    Batch,
    FatalError,
    Record,
    RecordRefused,
    Result,
    TransientError,
    decode_json,
    metadata,
)
from conduit_py.sdk.template import FieldPath, RecordPart, kind_of, text_of

CODECS_MAX: Final = 500
UNUSABLE_SECONDS: Final = 10.0
"""How long a schema counts as unusable without asking again: records with ids that nobody has may come in numbers."""


class Codec(Protocol):
    """Data of one schema. Both methods raise RecordRefused, with the field, for what does not fit."""

    raw: str | None
    """ "text" or "bytes" if a value of the schema is that by itself; None if raw data stands for a value in JSON."""

    def decode(self, data: bytes, start: int) -> Any:
        """Return the value whose encoding begins at `start` and ends with the data."""

    def encode(self, value: Any) -> bytes:
        """Return the encoding of a value, without the id of the schema."""


class _Unusable(NamedTuple):
    reason: str
    until: float


class _NotLoaded(Exception):
    """The codec of this key is not there yet. An exception, so that the usual way of a record has no await."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(key)
        self.key = key


OptionsT = TypeVar("OptionsT", bound=RegistryOptions)


class RegistryProcessor(OneFieldProcessor[OptionsT], ABC):
    """Replaces the value at `field`. Absent and null values stay, as in the tombstones of a topic.

    A registry that does not answer holds the records back; it never refuses one. The codecs of at most `CODECS_MAX`
    schemas are kept.
    """

    kind: ClassVar[str]
    """What the registry calls the format."""

    def open(self) -> None:
        field: FieldPath = self.options.field
        self._whole = not field.names
        self._get: Callable[[Record], Any] = field.get
        self._set: Callable[[Record, Any], None] = field.set
        self._codecs: dict[Hashable, Any] = {}
        self._unusable: dict[Hashable, _Unusable] = {}
        self._client = RegistryClient(self.options)

    async def close(self) -> None:
        # `open` may have failed before there was a client.
        client: RegistryClient | None = getattr(self, "_client", None)
        if client is not None:
            await client.close()

    async def process_batch(self, batch: Batch) -> list[Result]:
        results: list[Result] = []
        for record in batch.records:
            try:
                value = self._get(record)
                if value is not None:
                    try:
                        replaced = self.replace(record, value)
                    except _NotLoaded as missing:
                        await self.load(missing.key)
                        replaced = self.replace(record, value)
                    self._set(record, replaced)
                results.append(record)
            except (TransientError, FatalError):
                raise
            except RecordRefused as refused:
                reason = f"{self.options.field}: {refused.message}"
                results.append(RecordRefused(reason, suggestion=refused.suggestion))
            except Exception as error:  # a codec met what its author did not expect: only this record is refused
                results.append(error)
        return results

    @abstractmethod
    def replace(self, record: Record, value: Any) -> Any:
        """Return the new value. Raises RecordRefused if there is none, `_NotLoaded` if `load` must come first."""

    @abstractmethod
    async def load(self, key: Any) -> None:
        """Get and keep the codec of this key. Raises RecordRefused if the schema cannot be used."""

    @abstractmethod
    async def compile(self, schema: RegisteredSchema) -> Codec:
        """Return the codec of a schema. Raises SchemaUnusable if it cannot be used."""

    async def compile_of_kind(self, schema: RegisteredSchema) -> Codec:
        """Return the codec of a schema that must be of this format. Raises SchemaUnusable with the id."""
        if schema.kind != self.kind:
            raise SchemaUnusable(f"schema {schema.id} is of the type {schema.kind[:40]}, not {self.kind}")
        try:
            return await self.compile(schema)
        except SchemaUnusable as unusable:
            raise SchemaUnusable(f"schema {schema.id} cannot be used: {unusable}") from unusable

    def refuse_if_unusable(self, key: Hashable) -> None:
        unusable = self._unusable.get(key)
        if unusable is not None and trio.current_time() < unusable.until:
            raise RecordRefused(unusable.reason)

    def mark_unusable(self, key: Hashable, reason: str) -> RecordRefused:
        _make_room(self._unusable)
        self._unusable[key] = _Unusable(reason, trio.current_time() + UNUSABLE_SECONDS)
        return RecordRefused(reason)

    def keep_codec(self, key: Hashable, codec: Any) -> None:
        _make_room(self._codecs)
        self._codecs[key] = codec


class RegistryDecode(RegistryProcessor[OptionsT], ABC):
    """Replaces raw data by the value that it stands for, with the schema whose id the data begins with."""

    takes_whole = bytes | None

    def replace(self, record: Record, value: Any) -> Any:
        if not isinstance(value, bytes):
            raise RecordRefused(f"is {kind_of(value)} and not raw data with a schema id")
        schema_id = read_schema_id(value)
        codec: Codec | None = self._codecs.get(schema_id)
        if codec is None:
            raise _NotLoaded(schema_id)
        decoded = codec.decode(value, HEADER_SIZE)
        return decoded if not self._whole or type(decoded) is dict else _as_raw(decoded)

    async def load(self, key: int) -> None:
        self.refuse_if_unusable(key)
        try:
            codec = await self.compile_of_kind(await self._client.schema_by_id(key))
        except SchemaUnusable as unusable:
            raise self.mark_unusable(key, f"cannot be decoded with schema {key}: {unusable}") from unusable
        self.keep_codec(key, codec)


_REGISTER: Final = "register the schema, or choose strategy='autoRegister'"


class _SubjectSchema(NamedTuple):
    """What to encode with: a schema that is to be in a subject, or the version of the options if `text` is None."""

    subject: str
    text: str | None


class _Encoder(NamedTuple):
    header: bytes
    codec: Codec


RegistryEncodeOptionsT = TypeVar("RegistryEncodeOptionsT", bound=RegistryEncodeOptions)


class RegistryEncode(RegistryProcessor[RegistryEncodeOptionsT], ABC):
    """Replaces a value by its encoding, which begins with the id of the schema."""

    gives_whole = bytes | None

    def open(self) -> None:
        options = self.options
        self._text: str | None = None
        self._record_name = options.record_name or "record"
        if options.schema_file is not None:
            self._text = _read(options)
            try:
                self._record_name = options.record_name or self.record_name(self._text)
            except SchemaUnusable as unusable:
                raise FatalError(f"{options.schema_file} cannot be used: {unusable}") from unusable
        # Only a subject that no record decides makes a missing schema a mistake in the definition.
        self._by_record = options.subject is None and options.subject_strategy != "record"
        self._infers = options.strategy == "autoRegister" and self._text is None
        self._new_subjects: dict[Hashable, bool] = {}
        super().open()

    @abstractmethod
    def record_name(self, text: str) -> str:
        """Return the full name of the record in a schema. Raises SchemaUnusable if it has none."""

    def infer(self, value: Any, name: str) -> str:
        """Return a schema that the value fits. Raises RecordRefused if there is none."""
        raise NotImplementedError

    def replace(self, record: Record, value: Any) -> Any:
        text = self._text
        if self._infers:
            value = _from_json(value)
            text = self.infer(value, self._record_name)
        key = _SubjectSchema(self._subject(record), text)
        encoder: _Encoder | None = self._codecs.get(key)
        if encoder is None:
            raise _NotLoaded(key)
        raw = encoder.codec.raw
        if raw is None and isinstance(value, bytes | str):
            value = _from_json(value)
        elif raw == "text" and isinstance(value, bytes):
            value = text_of(value, "the data")
        return encoder.header + encoder.codec.encode(value)

    def _subject(self, record: Record) -> str:
        options = self.options
        if options.subject is not None:
            return options.subject
        if options.subject_strategy == "record":
            return self._record_name
        topic = record.metadata.get(metadata.COLLECTION) if options.topic is None else options.topic.render(record)
        if not topic:
            raise RecordRefused(
                f"has no subject: the record has no metadata {metadata.COLLECTION!r}",
                suggestion="give subject, or topic",
            )
        if options.subject_strategy == "topic-record":
            return f"{topic}-{self._record_name}"
        return f"{topic}-key" if options.field.part is RecordPart.KEY else f"{topic}-value"

    async def load(self, key: "_SubjectSchema") -> None:
        self.refuse_if_unusable(key)
        try:
            schema = await self._schema(key)
            encoder = _Encoder(header(schema.id), await self.compile_of_kind(schema))
        except SchemaUnusable as unusable:
            reason = f"has no schema with subject {key.subject!r}: {unusable}"
            if self._by_record or self._infers:
                raise self.mark_unusable(key, reason) from unusable
            added = self.options.strategy == "autoRegister"
            hint = "change the schema, or what the subject allows" if added else _REGISTER
            raise FatalError(f"{self.options.field} {reason}", suggestion=hint) from unusable
        self.keep_codec(key, encoder)

    async def _schema(self, key: "_SubjectSchema") -> RegisteredSchema:
        options, client = self.options, self._client
        if key.text is None:
            return await client.schema_by_version(key.subject, options.version)
        if options.strategy == "preRegistered":
            schema_id = await client.find_id(key.subject, self.kind, key.text, options.references)
        else:
            schema_id = await self._register(key.subject, key.text)
        return RegisteredSchema(schema_id, self.kind, key.text, await client.resolve(options.references))

    async def _register(self, subject: str, text: str) -> int:
        options, client = self.options, self._client
        if self._infers and subject not in self._new_subjects:
            _make_room(self._new_subjects)
            self._new_subjects[subject] = not await client.has_subject(subject)
        schema_id = await client.register(subject, self.kind, text, options.references)
        if self._new_subjects.get(subject):
            # Inferred schemas follow the records, which follow no rule of compatibility.
            await client.allow_all_changes(subject)
            self._new_subjects[subject] = False
        return schema_id


def _make_room(cache: dict[Hashable, Any]) -> None:
    """Make room for one more: the oldest entry goes."""
    if len(cache) >= CODECS_MAX:
        del cache[next(iter(cache))]


def _as_raw(value: Any) -> bytes | None:
    """Return a value that is no record as raw data: a key and a payload as a whole hold nothing else."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, list):
        raise RecordRefused("holds a list, and a key or payload as a whole is a record or raw data")
    return text_of(value).encode()


def _from_json(value: Any) -> Any:
    return decode_json(value) if isinstance(value, bytes | str) else value


def _read(options: RegistryEncodeOptions) -> str:
    assert options.schema_file is not None
    try:
        return options.schema_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FatalError(f"the schema cannot be read: {error}", suggestion="check schema_file") from error
