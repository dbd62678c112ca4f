"""What authors of connectors and pipelines test with.

The names are imported on first use: pytest loads this package in every project that has conduit-py
installed, and most of them must not pay for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_py.testing.acceptance import destination_acceptance, source_acceptance
    from conduit_py.testing.crash import CrashReport, CrashTestFailed, run_with_kills
    from conduit_py.testing.destination import ScriptedDestination
    from conduit_py.testing.harness import Outcome, rehearse, run_to_end
    from conduit_py.testing.log import Delivery, Event, Log
    from conduit_py.testing.outage import MortalStore, run_with_outage
    from conduit_py.testing.records import number_of, numbered, position_of
    from conduit_py.testing.script import (
        AwaitFlush,
        Block,
        Delay,
        EmptyPosition,
        Fail,
        Mistake,
        NotYet,
        OnAck,
        OnAnswer,
        OnFlush,
        Refuse,
        RefuseOutside,
        Repeat,
        RepeatPosition,
        ReturnNothing,
        ReturnTooMany,
        Step,
    )
    from conduit_py.testing.simulation import SimulationStuck, simulate, simulated
    from conduit_py.testing.source import ScriptedSource, StoppableSource

_HOME = {
    "conduit_py.testing.acceptance": ("destination_acceptance", "source_acceptance"),
    "conduit_py.testing.crash": ("CrashReport", "CrashTestFailed", "run_with_kills"),
    "conduit_py.testing.destination": ("ScriptedDestination",),
    "conduit_py.testing.harness": ("Outcome", "rehearse", "run_to_end"),
    "conduit_py.testing.log": ("Delivery", "Event", "Log"),
    "conduit_py.testing.outage": ("MortalStore", "run_with_outage"),
    "conduit_py.testing.records": ("number_of", "numbered", "position_of"),
    "conduit_py.testing.script": (
        "AwaitFlush",
        "Block",
        "Delay",
        "EmptyPosition",
        "Fail",
        "Mistake",
        "NotYet",
        "OnAck",
        "OnAnswer",
        "OnFlush",
        "Refuse",
        "RefuseOutside",
        "Repeat",
        "RepeatPosition",
        "ReturnNothing",
        "ReturnTooMany",
        "Step",
    ),
    "conduit_py.testing.simulation": ("SimulationStuck", "simulate", "simulated"),
    "conduit_py.testing.source": ("ScriptedSource", "StoppableSource"),
}

__all__ = [
    "AwaitFlush",
    "Block",
    "CrashReport",
    "CrashTestFailed",
    "Delay",
    "Delivery",
    "EmptyPosition",
    "Event",
    "Fail",
    "Log",
    "Mistake",
    "MortalStore",
    "NotYet",
    "OnAck",
    "OnAnswer",
    "OnFlush",
    "Outcome",
    "Refuse",
    "RefuseOutside",
    "Repeat",
    "RepeatPosition",
    "ReturnNothing",
    "ReturnTooMany",
    "ScriptedDestination",
    "ScriptedSource",
    "SimulationStuck",
    "Step",
    "StoppableSource",
    "destination_acceptance",
    "number_of",
    "numbered",
    "position_of",
    "rehearse",
    "run_to_end",
    "run_with_kills",
    "run_with_outage",
    "simulate",
    "simulated",
    "source_acceptance",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'conduit_py.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
