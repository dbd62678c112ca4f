"""What crosses to another process: the messages between a server and a child, and pickled pipelines.

The user's own modules are pickled by value, because the other process may not have their files, or has newer ones.
"""

import importlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from conduit_py.errors import PipelineInvalid, Problem, describe
from conduit_py.owned_process import PICKLE_HINT, pickle_by_value, why_not_pickled
from conduit_py.pipeline import Destination, Pipeline, Processor
from conduit_py.sdk.plugin import Place
from conduit_py.sdk.source import SnapshotRequest
from conduit_py.status import PipelineState, Stopper
from conduit_py.stream.meter import Progress
from conduit_py.wire_error import WireError


class StartRun(msgspec.Struct, frozen=True, tag=True):
    """From the server: the pickled pipeline, and `sys.path` to import it with. The run has this number from now on."""

    run: int
    pipeline: bytes
    recovery: str
    """As JSON."""
    path: list[str]
    secrets: list[str]
    """What the child has to mask in its texts, as far as it was not sent before."""


class StopRun(msgspec.Struct, frozen=True, tag=True):
    """From the server: stop gracefully or, with `force`, at once. Sent again when the request becomes stronger."""

    run: int
    by: Stopper
    force: bool


class LettersQueued(msgspec.Struct, frozen=True, tag=True):
    """From the server: dead letters of the pipeline were queued for replay."""

    pipeline: str


class SwapProcessors(msgspec.Struct, frozen=True, tag=True):
    """From the server: continue with the processors that another definition has at these nodes."""

    run: int
    number: int
    pipeline: bytes
    nodes: list[str]


class TakeSnapshot(msgspec.Struct, frozen=True, tag=True):
    """From the server: have a source read a collection as a whole."""

    run: int
    number: int
    source: str
    request: SnapshotRequest


class OpenTap(msgspec.Struct, frozen=True, tag=True):
    """From the server: sample the records of a node for a tap, at most so many a second and so many in all."""

    run: int
    number: int
    node: str
    rate: int
    limit: int | None


class CloseTap(msgspec.Struct, frozen=True, tag=True):
    """From the server: nobody reads the samples of this tap any more."""

    run: int
    number: int


class StoreReply(msgspec.Struct, frozen=True, tag=True):
    """From the server: the result of a call. A change is durable before this is sent."""

    number: int
    result: bytes = b""
    error: WireError | None = None


class StoreCall(msgspec.Struct, frozen=True, tag=True):
    """From the child: a call of the store."""

    number: int
    name: str
    arguments: bytes


class RunReport(msgspec.Struct, frozen=True):
    """The state and progress of one run."""

    run: int
    state: PipelineState
    progress: Progress


class ProgressReport(msgspec.Struct, frozen=True, tag=True):
    """From the child, several times a second: of each run whose state changed, and sometimes of every run."""

    runs: list[RunReport]


class TapSamples(msgspec.Struct, frozen=True, tag=True):
    """From the child: samples of a tap, without secrets, and how many it dropped since the last ones."""

    run: int
    number: int
    samples: list[bytes]
    """As JSON, because numbers of records may be larger than those of MessagePack."""
    dropped: int


class RequestDone(msgspec.Struct, frozen=True, tag=True):
    """From the child: it did what it was asked for, or why not. For a snapshot sent again once it is `durable`."""

    run: int
    number: int
    error: WireError | None = None
    durable: bool = False


class RunEnded(msgspec.Struct, frozen=True, tag=True):
    """The last message of a run, from the child: how the pipeline ended, or why it could not start."""

    run: int
    state: PipelineState | None = None
    progress: Progress | None = None
    error: WireError | None = None


ToChild: TypeAlias = (
    StartRun | StopRun | LettersQueued | SwapProcessors | TakeSnapshot | OpenTap | CloseTap | StoreReply
)
ToServer: TypeAlias = StoreCall | ProgressReport | TapSamples | RequestDone | RunEnded
TO_CHILD = msgspec.msgpack.Decoder(ToChild)
TO_SERVER = msgspec.msgpack.Decoder(ToServer)

Part = tuple[str, object, Place | None]
"""Something in a pipeline: its path in the definition, the thing itself, and where the user wrote it."""


def pickle_pipeline(pipeline: Pipeline, content: object, parts: Iterable[Part], where: str) -> bytes:
    """Pickle `content`, which is made of the pipeline.

    Raises PipelineInvalid, naming every part that cannot be sent `where`, and ImportError without cloudpickle, which
    for Spark is the one that comes with it.
    """
    pickler, files = "cloudpickle" if pipeline.spark is None else "pyspark.cloudpickle", users_files(pipeline)
    # First, so that an ImportError is about it, and not one of the user's objects.
    importlib.import_module(pickler)
    try:
        return pickle_by_value(content, files, pickler)
    except Exception as error:  # a plugin boundary: the user's objects run code when they are pickled
        # Each part by itself: an error about the whole does not name the part.
        problems = [
            Problem(path, f"cannot be sent to {where}: {reason}", PICKLE_HINT, *(place or (None, None)))
            for path, part, place in parts
            if (reason := why_not_pickled(part, files, pickler)) is not None
        ]
        whole = Problem("", f"cannot be sent to {where}: {describe(error)}", PICKLE_HINT)
        raise PipelineInvalid(pipeline.id, problems or [whole]) from error


def parts_of(pipeline: Pipeline) -> Iterator[Part]:
    """Everything in a pipeline that can hold objects of the user."""
    for source in pipeline.sources:
        yield f"sources.{source.id}", source, source.place
    yield from processors_of(pipeline)
    for destination in pipeline.destinations:
        yield f"destinations.{destination.id}", destination, destination.place
    yield "dead_letters", pipeline.dead_letters, pipeline.dead_letters.place or pipeline.place


def processors_of(pipeline: Pipeline) -> Iterator[Part]:
    for processor in pipeline.processors:
        yield f"processors.{processor.id}", processor, processor.place


def users_files(pipeline: Pipeline) -> set[str]:
    """The files that define the pipeline. The modules in their folders are the user's."""
    processors = [*pipeline.processors]
    for end in pipeline.ends:
        processors += end.processors
    declared: list[Pipeline | Processor | Destination] = [pipeline, *processors, *pipeline.destinations]
    return {each.place.file for each in declared if each.place}
