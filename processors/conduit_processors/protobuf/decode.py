"""`protobuf.decode` reads Protobuf whose schema is in a registry."""

from typing import ClassVar, Required, Unpack

import trio

from conduit_processors.protobuf.codec import ProtobufCodec
from conduit_processors.protobuf.compiler import compile_files
from conduit_processors.protobuf.encode import REQUIRES
from conduit_processors.registry.client import RegisteredSchema
from conduit_processors.registry.options import RegistryArguments, RegistryOptions
from conduit_processors.registry.processors import Codec, RegistryDecode


class ProtobufDecodeOptions(RegistryOptions):
    """Options of protobuf.decode."""


class ProtobufDecodeArguments(RegistryArguments, total=False):
    """ProtobufDecodeOptions as a caller writes them, for editors and type checkers."""

    url: Required[str]


class Decode(RegistryDecode[ProtobufDecodeOptions]):
    """Replaces raw data by the message that it holds, which may be any message of the schema.

    Data that is cut, or that has fields which its schema does not have, refuses the record.
    """

    kind = "PROTOBUF"
    requires: ClassVar = REQUIRES

    def __init__(self, **options: Unpack[ProtobufDecodeArguments]) -> None:
        super().__init__(**options)

    async def compile(self, schema: RegisteredSchema) -> Codec:
        descriptors = await trio.to_thread.run_sync(compile_files, schema, abandon_on_cancel=True)
        return ProtobufCodec(descriptors)
