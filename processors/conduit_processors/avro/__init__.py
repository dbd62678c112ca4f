"""`avro.decode` and `avro.encode`: structured data in Avro, with the schemas of a registry."""

from conduit_processors.avro.decode import Decode
from conduit_processors.avro.encode import Encode

__all__ = ["Decode", "Encode"]
