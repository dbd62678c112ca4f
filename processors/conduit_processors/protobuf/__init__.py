"""`protobuf.decode` and `protobuf.encode`: structured data in Protobuf, with the schemas of a registry.

In reading order: `decode`, `encode`, `codec` (one schema), `compiler` (of `.proto` texts).
"""

from conduit_processors.protobuf.decode import Decode
from conduit_processors.protobuf.encode import Encode

__all__ = ["Decode", "Encode"]
