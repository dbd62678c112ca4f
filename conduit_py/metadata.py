"""The metadata keys that OpenCDC and Conduit define, and W3C trace context. Others are named `<connector>.<key>`."""

import re
from collections.abc import Mapping
from typing import Final

OPENCDC_VERSION: Final = "opencdc.version"
CREATED_AT: Final = "opencdc.createdAt"
READ_AT: Final = "opencdc.readAt"
COLLECTION: Final = "opencdc.collection"
KEY_SCHEMA_SUBJECT: Final = "opencdc.key.schema.subject"
KEY_SCHEMA_VERSION: Final = "opencdc.key.schema.version"
PAYLOAD_SCHEMA_SUBJECT: Final = "opencdc.payload.schema.subject"
PAYLOAD_SCHEMA_VERSION: Final = "opencdc.payload.schema.version"
FILE_NAME: Final = "opencdc.file.name"
FILE_SIZE: Final = "opencdc.file.size"
FILE_HASH: Final = "opencdc.file.hash"
FILE_CHUNKED: Final = "opencdc.file.chunked"
FILE_CHUNK_INDEX: Final = "opencdc.file.chunk.index"
FILE_CHUNK_COUNT: Final = "opencdc.file.chunk.count"
SOURCE_PLUGIN_NAME: Final = "conduit.source.plugin.name"
SOURCE_PLUGIN_VERSION: Final = "conduit.source.plugin.version"
SOURCE_ID: Final = "conduit.source.connector.id"
DESTINATION_PLUGIN_NAME: Final = "conduit.destination.plugin.name"
DESTINATION_PLUGIN_VERSION: Final = "conduit.destination.plugin.version"
UNCHANGED_FIELDS: Final = "conduit.unchanged"
"""A JSON list of the fields that an update left alone. The record does not have them, and their values are not null."""
TRUNCATE: Final = "conduit.truncate"
"""`true` in a delete without a key: all rows of the collection are gone."""
NACK_ERROR: Final = "conduit.dlq.nack.error"
NACK_NODE: Final = "conduit.dlq.nack.node.id"
KEPT_AS_TEXT: Final = "conduit.dlq.kept.as.text"
TRACEPARENT: Final = "traceparent"
"""The trace that a record belongs to, as W3C Trace Context writes it."""
TRACESTATE: Final = "tracestate"

_IS_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_IS_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}", re.ASCII)
_HEADER_PREFIXES: Final = ("", "kafka.header.", "webhook.header.")


def trace_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that keep a record in its trace: `traceparent`, maybe `tracestate`, or none.

    A source has kept them under their own names or as headers of its system. What is no valid trace is left out: a
    record may come from anybody.
    """
    for prefix in _HEADER_PREFIXES:
        parent = metadata.get(prefix + TRACEPARENT)
        if parent is not None and _IS_TRACEPARENT.fullmatch(parent):
            state = metadata.get(prefix + TRACESTATE)
            kept = {TRACEPARENT: parent}
            return kept | {TRACESTATE: state} if state is not None and _IS_TRACESTATE.fullmatch(state) else kept
    return {}
