"""Steps between durable queues: what a user of them imports."""

from conduit_py.steps.graph import StepGraph, open_steps
from conduit_py.steps.queue import Queue, QueueMetadata, Queues, Tailer
from conduit_py.steps.step import Message, Process, Step, StepKind

__all__ = [
    "Message",
    "Process",
    "Queue",
    "QueueMetadata",
    "Queues",
    "Step",
    "StepGraph",
    "StepKind",
    "Tailer",
    "open_steps",
]
