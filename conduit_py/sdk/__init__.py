"""What authors of connectors and processors import; everything else may change without notice."""

from conduit_py import metadata
from conduit_py.batch import Batch, Fate, FateHandler, MessageId
from conduit_py.errors import ConduitError, FatalError, Fenced, RecordRefused, TransientError
from conduit_py.json_checks import JSON_DEPTH_MAX, DuplicateKeys, is_too_deep, may_repeat_keys
from conduit_py.payloads import Columns, LazyColumn, Payloads
from conduit_py.positions import EncodedPositions, MapPositions, PositionMap, Positions
from conduit_py.record import (
    CollectionSchema,
    Data,
    FieldType,
    Operation,
    Payload,
    Record,
    SchemaField,
    Structured,
    decode_json,
    encode_json,
)
from conduit_py.sdk.checkpointed_source import CheckpointedSource, Fetched, SourceCheckpoint
from conduit_py.sdk.destination import (
    AckMode,
    Answer,
    DestinationConnector,
    PieceRefused,
    PreparingDestination,
    StagedDestination,
    TransactionalDestination,
    WriteGuarantee,
)
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.processor import Processor, Result, Rows, Unchanged, processor
from conduit_py.sdk.source import (
    EndOfSource,
    Lag,
    NothingYet,
    QueueCounts,
    Reading,
    Records,
    SnapshotRefused,
    SnapshotRequest,
    SourceConnector,
    SplittableSource,
)
from conduit_py.sdk.state import Defer, State

__all__ = [
    "JSON_DEPTH_MAX",
    "AckMode",
    "Answer",
    "Batch",
    "CheckpointedSource",
    "CollectionSchema",
    "Columns",
    "ConduitError",
    "Data",
    "Defer",
    "DestinationConnector",
    "DuplicateKeys",
    "EncodedPositions",
    "EndOfSource",
    "FatalError",
    "Fate",
    "FateHandler",
    "Fenced",
    "Fetched",
    "FieldType",
    "Lag",
    "LazyColumn",
    "MapPositions",
    "MessageId",
    "NothingYet",
    "Operation",
    "Options",
    "Payload",
    "Payloads",
    "PieceRefused",
    "PositionMap",
    "Positions",
    "PreparingDestination",
    "Processor",
    "QueueCounts",
    "Reading",
    "Record",
    "RecordRefused",
    "Records",
    "Result",
    "Rows",
    "SchemaField",
    "SnapshotRefused",
    "SnapshotRequest",
    "SourceCheckpoint",
    "SourceConnector",
    "SplittableSource",
    "StagedDestination",
    "State",
    "Structured",
    "TransactionalDestination",
    "TransientError",
    "Unchanged",
    "WriteGuarantee",
    "decode_json",
    "encode_json",
    "is_too_deep",
    "may_repeat_keys",
    "metadata",
    "processor",
]
