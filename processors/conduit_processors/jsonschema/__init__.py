"""`jsonschema.decode` and `jsonschema.encode`: JSON with the schemas of a registry.

In reading order: `decode`, `encode`, `codec` (one schema), `guard` (schemas and values that would hold it up).
"""

from conduit_processors.jsonschema.decode import Decode
from conduit_processors.jsonschema.encode import Encode

__all__ = ["Decode", "Encode"]
