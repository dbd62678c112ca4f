"""The progress and the result of a pipeline of `run`, as a line of text and as JSON fields."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from conduit_py.cli.output import ExitCode, shown
from conduit_py.dead_letter_policy import DeadLetterPolicy, StopPolicy
from conduit_py.errors import RunError, TransientError
from conduit_py.pipeline import Pipeline
from conduit_py.run_outcome import list_causes, summarize_dead_letters
from conduit_py.status import LastError, PipelineState, Status
from conduit_py.stream.meter import Progress

FRESH = "--fresh reads and delivers everything again, also what destinations already have"


@dataclass(frozen=True)
class ProgressLine:
    """The progress of a running pipeline at one moment, with its current rate."""

    progress: Progress
    records_per_second: float
    error: LastError | None = None

    @property
    def window(self) -> int:
        return sum(meter.window for meter in self.progress.nodes if meter.kind == "source")

    @property
    def trouble(self) -> str | None:
        """The error that the pipeline is about to recover from or has ended with."""
        troubled = self.progress.status in (Status.RECOVERING.value, Status.DEGRADED.value)
        return shown(self.error.message) if self.error and troubled else None

    def sentence(self) -> str:
        """The progress in one line."""
        progress = self.progress
        blocked = f", waits for {progress.blocked_on}" if progress.blocked_on else ""
        trouble = f", after {self.trouble}" if self.trouble else ""
        return (
            f"{progress.pipeline}: {progress.status}, {progress.read:,} read, {progress.acked:,} acked, "
            f"{_count_text(progress.dead_letters, 'dead letter')}, {self.records_per_second:,.0f}/s, "
            f"{progress.in_flight:,} of {self.window:,} in flight{blocked}{trouble}"
        )

    def fields(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "type": "progress",
            **_numbers(progress),
            "in_flight": progress.in_flight,
            "window": self.window,
            "records_per_second": round(self.records_per_second, 1),
            "blocked_on": progress.blocked_on,
        }


@dataclass(frozen=True)
class RunResult:
    """How a pipeline's run ended."""

    progress: Progress
    state: PipelineState
    resumed: bool
    """Whether it had a stored position to continue from."""
    forced: bool
    """Whether the user ended the graceful stop by force."""
    policy: DeadLetterPolicy = field(default_factory=StopPolicy)
    fails_on_dead_letters: bool = False
    store: str | None = None
    """The state that the run used, as `--state` takes it."""
    retry_advice: str | None = None
    """How such a run is tried again by itself, if a transient error ended it."""

    @property
    def exit_code(self) -> ExitCode:
        status, error = self.state.status, self.state.error
        graceful = status is Status.STOPPED and error is None and not self.forced
        if status is not Status.COMPLETED and not graceful:
            return ExitCode.FAILED
        return ExitCode.DEAD_LETTERS if self.fails_on_dead_letters and self.progress.dead_letters else ExitCode.OK

    def sentence(self) -> str:
        """The summary line that ends every run."""
        progress, letters = self.progress, _count_text(self.progress.dead_letters, "dead letter")
        status = "stopped by force" if self.forced and self.state.status is Status.STOPPED else self.state.status.value
        return (
            f"{progress.pipeline}: {status}: {progress.read:,} read, {progress.acked:,} acked, "
            f"{progress.filtered:,} filtered, {_unwanted_text(progress.unwanted)}{letters} "
            f"in {progress.elapsed_seconds:,.1f} s ({self._rate:,.0f}/s)"
        )

    def remark(self) -> str | None:
        """An explanation of numbers that may surprise a user, or None."""
        if self.progress.read:
            return f"continued where the last run ended; {FRESH}" if self.resumed else None
        if self.state.status is not Status.COMPLETED:
            return None
        if self.resumed:
            return f"nothing new since the last run; {FRESH}"
        return "the sources had no records"

    def warning(self) -> str | None:
        """How many records were refused, the most frequent cause and where the dead letters are, or None."""
        said = summarize_dead_letters(self.progress, self.policy)
        if said is None or self.store is None or not self.policy.keeps:
            return said
        # A PostgreSQL address may hold a password.
        store = "…" if "://" in self.store else self.store
        return f"{said}; `conduit-py dlq list --state {store}` shows them"

    def fields(self) -> dict[str, Any]:
        error = self.state.error
        return {
            "type": "result",
            **_numbers(self.progress),
            "records_per_second": round(self._rate, 1),
            "resumed": self.resumed,
            "forced": self.forced,
            "warning": self.warning(),
            "dead_letter_causes": dict(list_causes(self.progress)),
            "error": msgspec.to_builtins(error) if error else None,
            "exit_code": int(self.exit_code),
        }

    @property
    def _rate(self) -> float:
        return self.progress.acked / self.progress.elapsed_seconds if self.progress.elapsed_seconds > 0 else 0.0


def advise_retries(pipeline: Pipeline, error: RunError | None) -> str | None:
    """How a run is tried again that ended with this error; None if that cannot help, or the pipeline says it itself."""
    if not isinstance(error, TransientError) or pipeline.settings.recovery is not None:
        return None
    if pipeline.place is not None and Path(pipeline.place.file).suffix in (".yaml", ".yml"):
        return "a transient error: under `conduit-py serve` the pipeline starts again by itself"
    # A transaction is repeated as a whole, so most destinations of exactly-once pipelines may have no `retry`.
    destinations = pipeline.destinations if pipeline.delivery != "exactly_once" else []
    retries = {each.id: each.retry for each in pipeline.processors} | {each.id: each.retry for each in destinations}
    once = error.node in retries and retries[error.node].attempts == 1
    first = f"; with retry=Retry(attempts=5), {error.node} first repeats the call that failed" if once else ""
    return (
        "a transient error: with recovery=Recovery() the pipeline starts again by itself, as under "
        f"`conduit-py serve`{first}"
    )


def _numbers(progress: Progress) -> dict[str, Any]:
    return {
        "pipeline": progress.pipeline,
        "status": progress.status,
        "elapsed_seconds": round(progress.elapsed_seconds, 3),
        "read": progress.read,
        "acked": progress.acked,
        "filtered": progress.filtered,
        "unwanted": progress.unwanted,
        "dead_letters": progress.dead_letters,
    }


def _count_text(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _unwanted_text(number: int) -> str:
    # Only where there are any: most pipelines have no conditions.
    return f"{number:,} wanted by no destination, " if number else ""


class RecordRate:
    """The rate of a growing count over the last seconds, from samples at any times."""

    def __init__(self, window_seconds: float = 5.0) -> None:
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> float:
        """Take a sample and return the rate between it and the oldest within the window."""
        self._samples.append((now, count))
        # The last one outside the window stays: between rare samples the window would hold one only.
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_seconds:
            self._samples.popleft()
        then, before = self._samples[0]
        return (count - before) / (now - then) if now > then else 0.0
