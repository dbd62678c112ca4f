"""Objects: reads and writes files and objects of S3, GCS, Azure and others; reads those that queue messages announce.

`source.py` with `reading.py` reads objects: `discovery.py` finds them, `contents.py` makes records of them. `reader.py`
is for objects that a message announces. `store.py` says what a store is.
"""

from conduit_connectors.objects.reader import Format, ObjectArguments, ObjectOptions, ObjectQueueOptions, ObjectReader
from conduit_connectors.objects.source import Source

__all__ = ["Format", "ObjectArguments", "ObjectOptions", "ObjectQueueOptions", "ObjectReader", "Source"]
