"""DeadLetters and DeadLetterPolicy: what a pipeline declares for its refused records.

Code reads the attributes of a policy and never compares its name. The handler of each policy, which acts during a
run, is in `stream/dead_letters.py`. A new policy is a class here and a handler there.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias

from conduit_py.errors import Problem
from conduit_py.pipeline_settings import DeadLetterSettings, Retention
from conduit_py.resolve import describe_value, plugin_problems
from conduit_py.sdk.destination import DestinationConnector, WriteGuarantee
from conduit_py.sdk.plugin import Options, at, check_options, collect_keyword_problems, did_you_mean, place_of_call
from conduit_py.sdk.registry import connector_label

if TYPE_CHECKING:
    from conduit_py.dead_letter import DeadLetter

DeadLetterFunction: TypeAlias = "Callable[[DeadLetter], Awaitable[None] | None]"

DeadLettersTo: TypeAlias = (
    "Literal['stop', 'drop', 'journal'] | DeadLetterPolicy | DestinationConnector[Options] | DeadLetterFunction"
)


class DeadLetterPolicy(ABC):
    """The properties of a policy that the runtime relies on."""

    stops: ClassVar[bool] = False
    """The first refused record ends the run."""
    keeps: ClassVar[bool] = False
    """Letters are stored in the state store, where they can be listed, edited and sent again."""
    discards: ClassVar[bool] = False
    """No letter is stored, so a crash cannot repeat one."""
    connector: DestinationConnector[Options] | None = None
    """The connector that letters are written to."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in diagrams, metrics and the API."""

    @property
    @abstractmethod
    def whereabouts(self) -> str:
        """Where the letters are, as the end of a sentence."""

    @property
    def repeats_after_crash(self) -> str | None:
        """Why a letter may arrive twice after a crash, which exactly-once forbids; None if it cannot."""
        return None


@dataclass(frozen=True)
class StopPolicy(DeadLetterPolicy):
    """Stop the pipeline at the first refused record."""

    stops: ClassVar[bool] = True
    discards: ClassVar[bool] = True
    label: ClassVar[str] = "stop"
    whereabouts: ClassVar[str] = "the records were not acked"


@dataclass(frozen=True)
class DropPolicy(DeadLetterPolicy):
    """Log and count refused records, and drop them."""

    discards: ClassVar[bool] = True
    label: ClassVar[str] = "drop"
    whereabouts: ClassVar[str] = "they were dropped, and only the log has them"


@dataclass(frozen=True)
class KeepPolicy(DeadLetterPolicy):
    """Store letters in the state store, within the limits of `retention`."""

    retention: Retention = field(default_factory=Retention)
    keeps: ClassVar[bool] = True
    # A compatible name: it is part of the API, of metrics and of YAML.
    label: ClassVar[str] = "journal"
    whereabouts: ClassVar[str] = "they are kept in the state"


@dataclass(frozen=True)
class DestinationPolicy(DeadLetterPolicy):
    """Write letters to a destination connector."""

    connector: DestinationConnector[Options]

    @property
    def label(self) -> str:
        return connector_label(self.connector)

    @property
    def whereabouts(self) -> str:
        path = getattr(self.connector.options, "path", None)
        return f"they are in {path}" if path else f"they were written to {self.label}"

    @property
    def repeats_after_crash(self) -> str | None:
        plain = self.connector.guarantee is WriteGuarantee.AT_LEAST_ONCE
        return f"{self.label} would keep letters again after a crash" if plain else None


@dataclass(frozen=True)
class FunctionPolicy(DeadLetterPolicy):
    """Call a function with each letter."""

    function: DeadLetterFunction

    @property
    def label(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def whereabouts(self) -> str:
        return f"they were passed to {self.label}()"

    @property
    def repeats_after_crash(self) -> str | None:
        return "a function may be given a letter again after a crash"


NAMED_POLICIES: dict[str, type[DeadLetterPolicy]] = {"stop": StopPolicy, "drop": DropPolicy, "journal": KeepPolicy}
"""The policies that Python and YAML name by a word."""


def parse_policy(handler: object, retention: Retention | None) -> DeadLetterPolicy | None:
    """Return the policy for what a user declared; None if it is not valid."""
    if isinstance(handler, DeadLetterPolicy):
        return handler
    if isinstance(handler, DestinationConnector):
        return DestinationPolicy(handler)
    if isinstance(handler, str):
        kind = NAMED_POLICIES.get(handler)
        if kind is KeepPolicy:
            return KeepPolicy(retention or Retention())
        return kind() if kind is not None else None
    # Last: a connector may be callable too.
    return FunctionPolicy(handler) if callable(handler) else None


class DeadLetters:
    """What happens to refused records: `DeadLetters.stop()`, `drop()`, `keep()`, `to(connector)` or `call(function)`.

    Of the last `window_size` outcomes of a source at most `window_nack_threshold` may be nacks; one more stops the
    pipeline. Without a window, more than 95 nacks among the first 100 outcomes of a run stop it; a `window_size` of 0
    accepts any number. `DeadLetters("stop")`, `("drop")`, `("journal")`, `(connector)`, `(function)` mean the same.
    """

    @collect_keyword_problems
    def __init__(
        self,
        handler: "DeadLettersTo" = "stop",
        *,
        window_size: int | None = None,
        window_nack_threshold: int = 0,
        retention: Retention | None = None,
    ) -> None:
        self.place = place_of_call()
        spot = self.place or (None, None)
        values = dict(window_size=window_size, window_nack_threshold=window_nack_threshold, retention=retention)
        checked, self.problems = check_options(DeadLetterSettings, values, self.place)
        self.settings = checked if isinstance(checked, DeadLetterSettings) else DeadLetterSettings()
        policy = parse_policy(handler, self.settings.retention)
        # The strictest policy stands in for a wrong one until its problem is reported.
        self.policy = policy or StopPolicy()
        if policy is None:
            what = 'must be "stop", "drop", "journal", a destination connector or a callable'
            message = f"{what}, not {describe_value(handler)}"
            self.problems.append(Problem("handler", message, _spelling(handler), *spot))
        if self.policy.connector is not None:
            found = plugin_problems(self.policy.connector, "", spot)
            self.problems += [at(problem, "handler") for problem in found]
        if retention is not None and not self.policy.keeps:
            what = 'is for letters that are kept here, with the handler "journal"'
            self.problems.append(Problem("retention", what, None, *spot))

    @classmethod
    def stop(cls) -> Self:
        """The first refused record stops the pipeline."""
        return cls("stop")

    @classmethod
    @collect_keyword_problems
    def drop(cls, *, window_size: int | None = None, window_nack_threshold: int = 0) -> Self:
        """Refused records are logged and forgotten."""
        return cls("drop", window_size=window_size, window_nack_threshold=window_nack_threshold)

    @classmethod
    @collect_keyword_problems
    def keep(
        cls, *, retention: Retention | None = None, window_size: int | None = None, window_nack_threshold: int = 0
    ) -> Self:
        """The state keeps refused records within `retention`. They can be listed, edited and sent again."""
        return cls("journal", retention=retention, window_size=window_size, window_nack_threshold=window_nack_threshold)

    @classmethod
    @collect_keyword_problems
    def to(
        cls,
        connector: DestinationConnector[Options],
        *,
        window_size: int | None = None,
        window_nack_threshold: int = 0,
    ) -> Self:
        """A destination connector stores refused records."""
        return cls(connector, window_size=window_size, window_nack_threshold=window_nack_threshold)

    @classmethod
    @collect_keyword_problems
    def call(
        cls, function: DeadLetterFunction, *, window_size: int | None = None, window_nack_threshold: int = 0
    ) -> Self:
        """A function is called with each refused record, as a DeadLetter."""
        return cls(function, window_size=window_size, window_nack_threshold=window_nack_threshold)


def _spelling(handler: object) -> str | None:
    return did_you_mean(handler, list(NAMED_POLICIES)) if isinstance(handler, str) else None
