"""DeadLetterPolicy: what a pipeline declares for its refused records.

Code reads the attributes of a policy and never compares its name. The handler of each policy, which acts during a
run, is in `stream/dead_letters.py`. A new policy is a class here and a handler there.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from conduit_py.pipeline_settings import Retention
from conduit_py.sdk.destination import DestinationConnector, WriteGuarantee
from conduit_py.sdk.plugin import Options, connector_label

if TYPE_CHECKING:
    from conduit_py.dead_letter import DeadLetter

DeadLetterFunction: TypeAlias = "Callable[[DeadLetter], Awaitable[None] | None]"


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
