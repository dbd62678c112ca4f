"""Objects: reads files and S3 objects that queue messages announce as records, from any point on."""

from conduit_connectors.objects.reader import Format, ObjectArguments, ObjectOptions, ObjectQueueOptions, ObjectReader

__all__ = ["Format", "ObjectArguments", "ObjectOptions", "ObjectQueueOptions", "ObjectReader"]
