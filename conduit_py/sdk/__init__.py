"""What authors of connectors and processors import; everything else may change without notice."""

from conduit_py import metadata
from conduit_py.batch import Batch, Fate, FateHandler, MessageId
from conduit_py.errors import FatalError, Fenced, RecordRefused, TransientError
from conduit_py.record import Data, Operation, Payload, Record, Structured, decode_json, encode_json
from conduit_py.sdk.defer import Defer
from conduit_py.sdk.destination import AckMode, Answer, Destination, Level
from conduit_py.sdk.options import Options
from conduit_py.sdk.preparing import PieceRefused, PreparingDestination
from conduit_py.sdk.processor import Processor, Result, processor
from conduit_py.sdk.rows import Rows
from conduit_py.sdk.source import EndOfSource, Lag, NothingYet, Reading, Source
from conduit_py.sdk.splittable import SplittableSource
from conduit_py.sdk.state import State
from conduit_py.sdk.tally import Tally
from conduit_py.sdk.transactional import StagedDestination, TransactionalDestination

__all__ = [
    "AckMode",
    "Answer",
    "Batch",
    "Data",
    "Defer",
    "Destination",
    "EndOfSource",
    "FatalError",
    "Fate",
    "FateHandler",
    "Fenced",
    "Lag",
    "Level",
    "MessageId",
    "NothingYet",
    "Operation",
    "Options",
    "Payload",
    "PieceRefused",
    "PreparingDestination",
    "Processor",
    "Reading",
    "Record",
    "RecordRefused",
    "Result",
    "Rows",
    "Source",
    "SplittableSource",
    "StagedDestination",
    "State",
    "Structured",
    "Tally",
    "TransactionalDestination",
    "TransientError",
    "decode_json",
    "encode_json",
    "metadata",
    "processor",
]
