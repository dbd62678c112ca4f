"""conduit-py moves records between systems: ordered acks, bounded memory, nothing lost.

What is inside, and in which order to read it: docs/explanation/architecture.md. The names below are imported on first
use: `conduit-py --help` must not pay for pydantic and trio.
"""

from typing import TYPE_CHECKING

from conduit_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from conduit_py.backoff import Recovery, Retry
    from conduit_py.batch import Batch, Fate, MessageId
    from conduit_py.dead_letter import DeadLetter
    from conduit_py.errors import (
        ConduitError,
        DeadLettersFound,
        FatalError,
        PipelineInvalid,
        RecordRefused,
        TransientError,
    )
    from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Processor, Source
    from conduit_py.pipeline_settings import RateLimit, Retention, Spark, TransactionLimits
    from conduit_py.record import Operation, Payload, Record
    from conduit_py.run_outcome import KeptDeadLetter, NodeCounts, RunCounts, RunOutcome
    from conduit_py.runner import RunningPipeline, run, run_async, running
    from conduit_py.sdk.processor import Rows, processor
    from conduit_py.sdk.secrets import secret
    from conduit_py.sdk.state import Defer, State
    from conduit_py.status import Status

__version__ = "0.1.0"

_HOME = {
    "conduit_py.backoff": ("Recovery", "Retry"),
    "conduit_py.batch": ("Batch", "Fate", "MessageId"),
    "conduit_py.dead_letter": ("DeadLetter",),
    "conduit_py.errors": (
        "ConduitError",
        "DeadLettersFound",
        "FatalError",
        "PipelineInvalid",
        "RecordRefused",
        "TransientError",
    ),
    "conduit_py.pipeline": ("DeadLetters", "Destination", "Pipeline", "Processor", "Source"),
    "conduit_py.pipeline_settings": ("RateLimit", "Retention", "Spark", "TransactionLimits"),
    "conduit_py.record": ("Operation", "Payload", "Record"),
    "conduit_py.run_outcome": ("KeptDeadLetter", "NodeCounts", "RunCounts", "RunOutcome"),
    "conduit_py.runner": ("RunningPipeline", "run", "run_async", "running"),
    "conduit_py.sdk.processor": ("Rows", "processor"),
    "conduit_py.sdk.secrets": ("secret",),
    "conduit_py.sdk.state": ("Defer", "State"),
    "conduit_py.status": ("Status",),
}

__all__ = [
    "Batch",
    "ConduitError",
    "DeadLetter",
    "DeadLetters",
    "DeadLettersFound",
    "Defer",
    "Destination",
    "FatalError",
    "Fate",
    "KeptDeadLetter",
    "MessageId",
    "NodeCounts",
    "Operation",
    "Payload",
    "Pipeline",
    "PipelineInvalid",
    "Processor",
    "RateLimit",
    "Record",
    "RecordRefused",
    "Recovery",
    "Retention",
    "Retry",
    "Rows",
    "RunCounts",
    "RunOutcome",
    "RunningPipeline",
    "Source",
    "Spark",
    "State",
    "Status",
    "TransactionLimits",
    "TransientError",
    "processor",
    "run",
    "run_async",
    "running",
    "secret",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
