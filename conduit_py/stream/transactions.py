"""Transactions: what a run of an exactly-once pipeline needs from above, where transactions are made."""

from typing import TYPE_CHECKING, Protocol

from conduit_py.errors import RunError
from conduit_py.stream.gate import Gate

if TYPE_CHECKING:
    from conduit_py.stream.wiring import Wiring


class Transactions(Protocol):
    """Joins the sources, processors and destinations of one run in transactions.

    The run calls, in this order: `enlist` when everything is made, `claim` before anything is opened, `recover`
    when destinations are open and neither processors nor sources are, and `run` beside all other tasks. In
    place of the settlers it is what makes progress durable and acks.
    """

    gate: Gate

    def enlist(self, wiring: "Wiring") -> None: ...
    async def claim(self) -> None: ...
    async def recover(self) -> None: ...
    async def run(self) -> None: ...

    def explain(self, error: RunError) -> None:
        """Say in an error that ends the run which record it is about, if that is known."""
        ...
