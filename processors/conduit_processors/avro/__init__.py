"""`avro.decode` and `avro.encode`: structured data in Avro, with the schemas of a registry.

In reading order: `decode`, `encode`, `codec` (one schema), `compiler` (a reader and a writer for each type), `values`,
`containers`, `inference` (a schema that a value fits).
"""

from conduit_processors.avro.decode import Decode
from conduit_processors.avro.encode import Encode

__all__ = ["Decode", "Encode"]
