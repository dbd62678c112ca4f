"""`protobuf.encode` writes structured data in Protobuf, with the id of its schema in a registry."""

from typing import ClassVar, Required, Unpack

import trio

from conduit_processors.protobuf.codec import ProtobufCodec
from conduit_processors.protobuf.compiler import compile_files
from conduit_processors.registry.client import RegisteredSchema, SchemaUnusable
from conduit_processors.registry.options import RegistryEncodeArguments, RegistryEncodeOptions
from conduit_processors.registry.processors import Codec, RegistryEncode
from conduit_py.sdk import FatalError

REQUIRES = {"grpc_tools": "conduit-dataflow[protobuf]"}


class ProtobufEncodeOptions(RegistryEncodeOptions):
    """Options of protobuf.encode."""


class ProtobufEncodeArguments(RegistryEncodeArguments, total=False):
    """ProtobufEncodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]


class Encode(RegistryEncode[ProtobufEncodeOptions]):
    """Replaces structured data by a message in the wire format of Confluent's registry.

    The message is `record_name`, or the first one of the schema. What does not fit it refuses the record, with the
    field. A schema cannot be inferred: its fields need numbers that stay the same.
    """

    kind = "PROTOBUF"
    requires: ClassVar = REQUIRES

    def __init__(self, **options: Unpack[ProtobufEncodeArguments]) -> None:
        super().__init__(**options)

    def open(self) -> None:
        if self.options.strategy == "autoRegister" and self.options.schema_file is None:
            raise FatalError("a Protobuf schema cannot be inferred from records", suggestion="give schema_file")
        super().open()

    def record_name(self, text: str) -> str:
        if self.options.subject is None and self.options.subject_strategy != "topic":
            raise SchemaUnusable("the subject is made of the name of the message: give record_name")
        return "record"

    async def compile(self, schema: RegisteredSchema) -> Codec:
        descriptors = await trio.to_thread.run_sync(compile_files, schema, abandon_on_cancel=True)
        return ProtobufCodec(descriptors, self.options.record_name)
