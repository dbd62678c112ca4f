"""What authors of connectors and processors import; everything else may change without notice.

In reading order: `plugin` (what all plugins have in common, and their options), then `source`, `destination` and
`processor`, one of which an author implements. `state` is for processors that remember, `checkpointed_source` and
`endpoint` are for special sources. `arrow`, `queue`, `spark` and `template` are public too, and imported by those that
need them. Behind these: `registry` (finds installed plugins), `secrets`, `function_signature` (functions as
processors), `state_values` (a state as bytes, and what of it is only in the store).
"""

from conduit_py import metadata
from conduit_py.batch import Batch, Fate, FateHandler, MessageId
from conduit_py.dataset import Dataset
from conduit_py.errors import ConduitError, FatalError, Fenced, RecordRefused, TransientError
from conduit_py.json_checks import JSON_DEPTH_MAX, DuplicateKeys, is_too_deep, may_repeat_keys
from conduit_py.payloads import Columns, LazyColumn, Payloads
from conduit_py.positions import EncodedPositions, MapPositions, PositionMap, Positions, foreign_position
from conduit_py.record import (
    CollectionSchema,
    Data,
    DriftCount,
    FieldType,
    Operation,
    Payload,
    Record,
    SchemaField,
    Structured,
    decode_json,
    encode_json,
)
from conduit_py.record_codec import decode_payload, encode_payload
from conduit_py.sdk.checkpointed_source import CheckpointedSource, Fetched, SourceCheckpoint, UnreadableRecord
from conduit_py.sdk.destination import (
    AckMode,
    Answer,
    DestinationConnector,
    ManyWriterDestination,
    PartId,
    PieceRefused,
    PreparingDestination,
    StageCleared,
    StagedDestination,
    TransactionalDestination,
    WriteGuarantee,
)
from conduit_py.sdk.endpoint import EndpointSource, HttpAnswer, HttpRequest
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.processor import Processor, Result, Rows, Unchanged, processor
from conduit_py.sdk.secrets import SecretProvider, SecretUnavailable
from conduit_py.sdk.source import (
    EndOfSource,
    KeptOrder,
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
    "Dataset",
    "Defer",
    "DestinationConnector",
    "DriftCount",
    "DuplicateKeys",
    "EncodedPositions",
    "EndOfSource",
    "EndpointSource",
    "FatalError",
    "Fate",
    "FateHandler",
    "Fenced",
    "Fetched",
    "FieldType",
    "HttpAnswer",
    "HttpRequest",
    "KeptOrder",
    "Lag",
    "LazyColumn",
    "ManyWriterDestination",
    "MapPositions",
    "MessageId",
    "NothingYet",
    "Operation",
    "Options",
    "PartId",
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
    "SecretProvider",
    "SecretUnavailable",
    "SnapshotRefused",
    "SnapshotRequest",
    "SourceCheckpoint",
    "SourceConnector",
    "SplittableSource",
    "StageCleared",
    "StagedDestination",
    "State",
    "Structured",
    "TransactionalDestination",
    "TransientError",
    "Unchanged",
    "UnreadableRecord",
    "WriteGuarantee",
    "decode_json",
    "decode_payload",
    "encode_json",
    "encode_payload",
    "foreign_position",
    "is_too_deep",
    "may_repeat_keys",
    "metadata",
    "processor",
]
