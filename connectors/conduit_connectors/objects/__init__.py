"""Objects: reads and writes files and objects of S3, GCS, Azure and others; reads those that queue messages announce.

`source.py` with `reading.py` reads objects: `discovery.py` finds them, `contents.py` makes records of them. `reader.py`
is for objects that a message announces. `destination.py` with `dataset_writer.py` writes files: `row_formats.py` makes
rows of records, `dataset_place.py` is where files wait and become visible. `store.py` says what a store is.
"""

from conduit_connectors.objects.destination import Destination
from conduit_connectors.objects.reader import Format, ObjectArguments, ObjectOptions, ObjectQueueOptions, ObjectReader
from conduit_connectors.objects.source import Source

__all__ = ["Destination", "Format", "ObjectArguments", "ObjectOptions", "ObjectQueueOptions", "ObjectReader", "Source"]
