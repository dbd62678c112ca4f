"""Objects: files and S3 objects that somebody announces, read as records from any point on."""

from conduit_connectors.objects.reader import Format, ObjectOptions, ObjectReader

__all__ = ["Format", "ObjectOptions", "ObjectReader"]
