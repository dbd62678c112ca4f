"""DeadLetterPolicy: what becomes of refused records, as a pipeline declares it.

Everybody who must know something about a policy asks the policy; nobody compares its name. What a policy does in a
run is in `stream/dead_letters.py`. A new policy is a class here and a handler there.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from conduit_py.pipeline_settings import Retention
from conduit_py.sdk.destination import DestinationConnector, WriteGuarantee
from conduit_py.sdk.plugin import connector_label

if TYPE_CHECKING:
    from conduit_py.dead_letter import DeadLetter

DeadLetterFunction: TypeAlias = "Callable[[DeadLetter], Awaitable[None] | None]"


class DeadLetterPolicy(ABC):
    """The answers to what the runtime asks about any policy."""

    stops: ClassVar[bool] = False
    """The first refused record ends the run."""
    keeps: ClassVar[bool] = False
    """Letters stay in the state store, where they can be listed, edited and sent again."""
    discards: ClassVar[bool] = False
    """No letter outlives the run, so none can be repeated by a crash."""
    connector: DestinationConnector[Any] | None = None
    """The connector that takes the letters."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in pictures, metrics and the API."""

    @property
    def repeats_after_crash(self) -> str | None:
        """Why a letter may arrive twice after a crash, which exactly-once rules out; None if it cannot."""
        return None


@dataclass(frozen=True)
class StopPolicy(DeadLetterPolicy):
    """Stop the pipeline at the first refused record."""

    stops: ClassVar[bool] = True
    discards: ClassVar[bool] = True
    label: ClassVar[str] = "stop"


@dataclass(frozen=True)
class DropPolicy(DeadLetterPolicy):
    """Log and count refused records, and forget them."""

    discards: ClassVar[bool] = True
    label: ClassVar[str] = "drop"


@dataclass(frozen=True)
class KeepPolicy(DeadLetterPolicy):
    """Keep letters in the state store for as long as `retention` says."""

    retention: Retention = field(default_factory=Retention)
    keeps: ClassVar[bool] = True
    # The name of Conduit's successor to a log: it stands in the API and in metrics, and stays.
    label: ClassVar[str] = "journal"


@dataclass(frozen=True)
class DestinationPolicy(DeadLetterPolicy):
    """Write letters to a destination connector."""

    connector: DestinationConnector[Any]

    @property
    def label(self) -> str:
        return connector_label(self.connector)

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
    def repeats_after_crash(self) -> str | None:
        return "a function may be given a letter again after a crash"


NAMED_POLICIES: dict[str, type[DeadLetterPolicy]] = {"stop": StopPolicy, "drop": DropPolicy, "journal": KeepPolicy}
"""The policies that are written as a word in Python and YAML."""


def parse_policy(handler: object, retention: Retention | None) -> DeadLetterPolicy | None:
    """The policy that a user wrote down; None if it is none."""
    if isinstance(handler, DeadLetterPolicy):
        return handler
    if isinstance(handler, DestinationConnector):
        return DestinationPolicy(handler)
    if isinstance(handler, str):
        kind = NAMED_POLICIES.get(handler)
        if kind is KeepPolicy:
            return KeepPolicy(retention or Retention())
        return kind() if kind is not None else None
    return FunctionPolicy(handler) if callable(handler) else None
