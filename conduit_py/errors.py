"""The error tree: who has to act, what happens next, and a stable code to look it up by.

Classes that only one part of conduit-py raises are defined in that part; the drawing has all of them.
`docs/reference/errors.md` lists the codes.

ConduitError
├── PipelineInvalid           the definition has problems; nothing was started
├── FileInvalid               a pipeline file has problems; nothing was started
│   └── NoPipeline            the file defines no pipeline
├── PluginUnknown             no installed package has this plugin
├── SecretUnavailable         a secret that a definition names cannot be read
├── EnvironmentUnfit          the machine or the state directory cannot be used; nothing was started
│   ├── StateLocked           another process owns the state directory
│   └── ServerUnreachable     no server answers the command
├── ServerRefused             the server answered the command with an error
├── CommandUnclear            the command does not say enough
├── WaitTimedOut              the server accepted the command but has not finished it in time
├── FleetError                the server refuses a request in the present state; nothing was changed
│   ├── PipelineUnknown       no pipeline has this id
│   ├── PipelineBusy          the pipeline must be stopped first
│   ├── PipelineIdle          the pipeline must be running
│   ├── LetterUnknown         no dead letter has this id
│   ├── LetterBusy            the dead letter is queued to be sent again
│   ├── LetterUnclear         the request fits several records of a dead letter
│   ├── PositionUnknown       no position of that time is known
│   ├── PositionBound         the state of processors belongs to the position
│   ├── PositionInvalid       the source cannot go on from the given position
│   ├── SnapshotRefused       the source does not take this request for a snapshot
│   ├── ShuttingDown          the server starts nothing any more
│   ├── NoFiles               the pipelines do not come from files, so there is nothing to reload
│   ├── LiveFull              too many clients watch
│   ├── TapsFull              too many taps are open
│   └── TapImpossible         the records do not pass through this server
├── DeadLettersFound          a run that was to have no dead letters has some
├── RecordRefused             one record cannot be handled; it is nacked and the pipeline goes on
└── RunError                  the run stops
    ├── TransientError        starting again may help: the lifecycle does so with back-off
    │   ├── NodeFailed        a connector or processor raised something it did not classify
    │   ├── Exhausted         the process had no memory, file descriptor or thread left
    │   ├── StateFailed       the state store could not make progress durable
    │   ├── RunElsewhere      another server runs the pipeline
    │   ├── Repeated          a transaction holds a key that was recorded as seen already
    │   ├── StaleToken        another worker took over leased work of a transaction
    │   ├── KeyBusy           another transaction handles the same message
    │   ├── PieceRefused      a destination refused a prepared piece because of one record in it
    │   ├── JournalFailed     a write or fsync of a journal failed
    │   ├── JournalFull       the disk had no room for an append
    │   ├── JournalBusy       another process held the journal for too long
    │   └── ProcessLost       a process that worked for the pipeline ended before its work
    └── FatalError            starting again would fail the same way: the pipeline stays stopped
        ├── ContractBroken    a connector or processor broke a rule of its own contract
        ├── WrongEventLoop    a connector or processor called asyncio, but runs on trio
        ├── CannotDefer       a processor deferred a record where that is not sound
        ├── DeferredFirst     a processor deferred the first record of a transaction
        ├── NackNotAllowed    the dead-letter policy does not take this nack
        ├── DeadLetterFailed  a dead letter could not be stored
        ├── Fenced            a newer run of the same pipeline took over
        │   └── RegisterMismatch a newer writer took over the journal
        ├── OutOfStep         a transaction's number does not follow the last one
        ├── StopTimedOut      a graceful stop did not end within its deadline
        ├── StatementRefused  a database refuses a statement because of what it names
        ├── RowRefused        Spark cannot write a row, and has no dead letters
        ├── JournalUnfit      the directory cannot be used as a journal
        ├── JournalDamaged    bytes of a journal are not what was written
        ├── JournalGap        a range of a journal is missing
        ├── FrameTooLarge     an append is larger than a frame can be
        ├── WrongOffset       an append was meant for another offset
        └── ReplayInvalid     a replay is not the range that was asked for
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class ConduitError(Exception):
    """Root of everything conduit-py raises on purpose."""

    code: ClassVar[str] = "conduit"
    suggestion: str | None = None

    def __init__(self, message: str, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        if suggestion is not None:
            self.suggestion = suggestion

    @property
    def message(self) -> str:
        return text_of(self.args[0]) if self.args else ""


@dataclass(frozen=True)
class Problem:
    """One problem in a pipeline definition: where it is, what is wrong, what to do about it."""

    path: str
    message: str
    suggestion: str | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        advice = f" ({self.suggestion})" if self.suggestion else ""
        return ": ".join(part for part in (place, self.path, self.message) if part) + advice


class PipelineInvalid(ConduitError):
    """The definition has problems; `problems` lists all of them, not only the first."""

    code = "pipeline.invalid"

    def __init__(self, pipeline: str, problems: Sequence[Problem]) -> None:
        self.pipeline = pipeline
        self.problems = tuple(problems)
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"pipeline {pipeline!r} has {count}:\n{lines}")


class EnvironmentUnfit(ConduitError):
    """This machine cannot run the pipeline as it is: a missing program, folder or permission."""

    code = "environment.unfit"


class StateLocked(EnvironmentUnfit):
    """Another process owns the state directory."""

    code = "state.locked"


class FleetError(ConduitError):
    """What was asked of a pipeline in a server cannot be done as things stand."""

    code = "fleet.refused"


class PipelineUnknown(FleetError):
    """There is no pipeline with this id."""

    code = "pipeline.unknown"


class PipelineBusy(FleetError):
    """The pipeline is running; what was asked needs it stopped."""

    code = "pipeline.running"


class PipelineIdle(FleetError):
    """The pipeline is not running; what was asked needs it to be."""

    code = "pipeline.not_running"


class LetterUnknown(FleetError):
    """There is no dead letter with this id."""

    code = "dead_letter.unknown"


class LetterBusy(FleetError):
    """The dead letter is about to be sent again; what was asked must wait for how that ends."""

    code = "dead_letter.queued"


class LetterUnclear(FleetError):
    """What was asked of a dead letter can be meant in several ways; say more."""

    code = "dead_letter.unclear"


class PositionUnknown(FleetError):
    """It is not known where the source was at that time."""

    code = "position.unknown"


class PositionBound(FleetError):
    """Processors keep state that belongs to the positions of the pipeline's sources."""

    code = "position.bound"


class ShuttingDown(FleetError):
    """The server is shutting down and starts nothing more."""

    code = "server.shutting_down"


class RecordRefused(ConduitError):
    """A destination or processor refused one record; the pipeline may go on without it."""

    code = "record.refused"


class DeadLettersFound(ConduitError):
    """A run refused records, and its caller asked for none."""

    code = "dead_letter.found"


class RunError(ConduitError):
    """Something that ends a run. `node` is the node it happened in, `record` the source and position it is about."""

    code = "run.failed"
    node: str | None = None
    record: tuple[str, bytes] | None = None


class TransientError(RunError):
    """Starting again may help, so the lifecycle does, with back-off. Connectors may raise it.

    `retry_after` is how many seconds the other system asks to be left alone. Retries and recovery wait so long, but
    at most an hour.
    """

    code = "run.transient"
    retry_after: float | None = None

    def __init__(self, message: str, *, suggestion: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, suggestion=suggestion)
        if retry_after is not None:
            self.retry_after = retry_after


class NodeFailed(TransientError):
    """A connector or processor raised an error that it did not classify; the cause is chained."""

    code = "node.failed"

    def __init__(self, node: str, doing: str, cause: BaseException, *, suggestion: str | None = None) -> None:
        super().__init__(f"{node}: {doing} failed: {describe(cause)}", suggestion=suggestion)
        self.node = node


class StateFailed(TransientError):
    """The state store could not make progress durable; nothing after it was acked."""

    code = "state.failed"


class RunElsewhere(TransientError):
    """Another server that shares the state runs the pipeline; when it has ended, this one may."""

    code = "run.elsewhere"

    def __init__(self, pipeline: str, holder: str) -> None:
        super().__init__(
            f"pipeline {pipeline!r} is run by {holder}, which shares this state",
            suggestion="stop it there, or leave this one waiting to take over",
        )
        self.holder = holder


class Repeated(TransientError):
    """A transaction was refused whole, because one of its keys was recorded as seen before it."""

    code = "transaction.repeated"

    def __init__(self, scope: str, key: bytes) -> None:
        super().__init__(f"key {key.hex()} of scope {scope!r} was recorded as seen already; nothing was committed")
        self.scope = scope
        self.key = key


class StaleToken(TransientError):
    """A transaction was refused whole, because leased work that it finished is no longer its own."""

    code = "transaction.stale_token"

    def __init__(self, scope: str, shard: str, reason: str) -> None:
        super().__init__(f"shard {shard!r} of {scope!r} {reason}; nothing was committed")
        self.scope = scope
        self.shard = shard


class FatalError(RunError):
    """Starting again would fail in the same way. Connectors may raise it."""

    code = "run.fatal"


class ContractBroken(FatalError):
    """A connector or processor broke a rule of its contract; the message names both."""

    code = "contract.broken"

    def __init__(self, node: str, rule: str) -> None:
        super().__init__(f"{node}: {rule}")
        self.node = node


class CannotDefer(FatalError):
    """A processor deferred a record that cannot be deferred; the message has the reason."""

    code = "processor.cannot_defer"


class DeferredFirst(FatalError):
    """A processor deferred the first record of a transaction, which would go on for ever."""

    code = "processor.deferred_first"


class NackNotAllowed(FatalError):
    """The dead-letter policy does not take this nack: handler `stop`, or the window's threshold."""

    code = "dead_letter.not_allowed"


class DeadLetterFailed(FatalError):
    """The dead-letter handler failed, so its message was not acked."""

    code = "dead_letter.failed"


class Fenced(FatalError):
    """A newer claim of the same owner exists, so nothing of this one can be committed any more."""

    code = "run.fenced"


class StopTimedOut(FatalError):
    """A graceful stop met its deadline and became a forceful one."""

    code = "stop.timed_out"


def describe(error: BaseException) -> str:
    """One line that names an error the way a person would: our own by message, others by type too."""
    if isinstance(error, ConduitError):
        return error.message
    text = text_of(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: object) -> str:
    """Return `str(error)`, or a text that says so if the `__str__` of a user's class raises."""
    try:
        return str(error)
    except (Exception, SystemExit, GeneratorExit):  # plugin boundary: the class is the user's
        return f"<{type(error).__name__} whose __str__ raises>"
