"""Steps: functions joined by durable queues. Each step processes each message exactly once.

In reading order: `step` (what an author writes), `queue` (messages in journals), `attempt_log` (the log of a step,
from which it recovers), `worker` (one step), `graph` (all of them). The names below are public.
"""

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
