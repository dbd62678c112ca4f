"""Steps between durable queues: what a user of them imports."""

from conduit_py.delivery.steps.graph import StepGraph, open_steps
from conduit_py.delivery.steps.metadata import Keeping
from conduit_py.delivery.steps.process import Process
from conduit_py.delivery.steps.queue import Queue, Tailer
from conduit_py.delivery.steps.queues import Queues
from conduit_py.delivery.steps.step import Kind, Message, Step

__all__ = ["Keeping", "Kind", "Message", "Process", "Queue", "Queues", "Step", "StepGraph", "Tailer", "open_steps"]
