"""`jsonschema.decode` and `jsonschema.encode`: JSON with the schemas of a registry."""

from conduit_processors.jsonschema.decode import Decode
from conduit_processors.jsonschema.encode import Encode

__all__ = ["Decode", "Encode"]
