"""The SQS connector: reads work from a queue of Amazon SQS, or of a service like it, and sends to one.

In reading order: `source`, `destination`, `connection`.
"""

from conduit_connectors.sqs.destination import Destination
from conduit_connectors.sqs.source import Source, SourceOptions, SqsQueue

__all__ = ["Destination", "Source", "SourceOptions", "SqsQueue"]
