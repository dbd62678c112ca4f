"""What authors of connectors and pipelines test with.

Read in this order: `harness` (run a pipeline in a test), `scripted_source` and `scripted_destination` with their
`script` and `event_log`, `simulation` (one seed decides everything), `crash` (kill it),
`fake_destinations` (one for each guarantee), `acceptance` (the rules of every connector, in `source_checks`
and `destination_checks`, which call it by `connector_driver`), `strategies` (for Hypothesis), `cdc` (change data
capture on a real database, with its `cdc_tables`). `plugin` is the pytest plugin; `services` has real servers, from
`server_packages`, started by `server_process`.

The names are imported on first use: pytest loads this package in every project that has conduit-py installed, and most
of them must not pay for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conduit_py.testing.acceptance import destination_acceptance, source_acceptance
    from conduit_py.testing.crash import (
        CrashReport,
        CrashTestFailed,
        FaultPoint,
        FaultyRun,
        OutageStore,
        durable,
        run_with_kills,
        run_with_outage,
    )
    from conduit_py.testing.event_log import Event, EventLog, ReceivedRecord, number_of, numbered_record, position_of
    from conduit_py.testing.fake_destinations import (
        FakeKeyedDestination,
        FakeStagedDestination,
        FakeStorage,
        FakeTransactionalDestination,
    )
    from conduit_py.testing.harness import ObservedRun, rehearse, run_to_end
    from conduit_py.testing.script import (
        AnswerUnknown,
        AwaitFlush,
        Block,
        Delay,
        EmptyPosition,
        Fail,
        Idle,
        InGroup,
        OnAck,
        OnAnswer,
        OnFlush,
        Refuse,
        RefuseOutside,
        RepeatAnswer,
        RepeatPosition,
        ReturnNothing,
        ReturnTooMany,
        ScriptStep,
        WithProgress,
    )
    from conduit_py.testing.scripted_destination import ScriptedDestination
    from conduit_py.testing.scripted_source import ScriptedSource, StoppableSource
    from conduit_py.testing.simulation import SimulationStuck, simulate, simulated

_HOME = {
    "conduit_py.testing.acceptance": ("destination_acceptance", "source_acceptance"),
    "conduit_py.testing.crash": (
        "CrashReport",
        "CrashTestFailed",
        "FaultPoint",
        "FaultyRun",
        "OutageStore",
        "durable",
        "run_with_kills",
        "run_with_outage",
    ),
    "conduit_py.testing.scripted_destination": ("ScriptedDestination",),
    "conduit_py.testing.harness": ("ObservedRun", "rehearse", "run_to_end"),
    "conduit_py.testing.event_log": (
        "Event",
        "EventLog",
        "ReceivedRecord",
        "number_of",
        "numbered_record",
        "position_of",
    ),
    "conduit_py.testing.fake_destinations": (
        "FakeKeyedDestination",
        "FakeStagedDestination",
        "FakeStorage",
        "FakeTransactionalDestination",
    ),
    "conduit_py.testing.script": (
        "AwaitFlush",
        "Block",
        "Delay",
        "EmptyPosition",
        "Fail",
        "AnswerUnknown",
        "Idle",
        "InGroup",
        "OnAck",
        "OnAnswer",
        "OnFlush",
        "Refuse",
        "RefuseOutside",
        "RepeatAnswer",
        "RepeatPosition",
        "ReturnNothing",
        "ReturnTooMany",
        "ScriptStep",
        "WithProgress",
    ),
    "conduit_py.testing.simulation": ("SimulationStuck", "simulate", "simulated"),
    "conduit_py.testing.scripted_source": ("ScriptedSource", "StoppableSource"),
}

__all__ = [
    "AnswerUnknown",
    "AwaitFlush",
    "Block",
    "CrashReport",
    "CrashTestFailed",
    "Delay",
    "EmptyPosition",
    "Event",
    "EventLog",
    "Fail",
    "FakeKeyedDestination",
    "FakeStagedDestination",
    "FakeStorage",
    "FakeTransactionalDestination",
    "FaultPoint",
    "FaultyRun",
    "Idle",
    "InGroup",
    "ObservedRun",
    "OnAck",
    "OnAnswer",
    "OnFlush",
    "OutageStore",
    "ReceivedRecord",
    "Refuse",
    "RefuseOutside",
    "RepeatAnswer",
    "RepeatPosition",
    "ReturnNothing",
    "ReturnTooMany",
    "ScriptStep",
    "ScriptedDestination",
    "ScriptedSource",
    "SimulationStuck",
    "StoppableSource",
    "WithProgress",
    "destination_acceptance",
    "durable",
    "number_of",
    "numbered_record",
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
