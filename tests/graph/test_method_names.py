"""A method that looks like one of the SDK but is not would never be called: `check` reports it."""

from typing import Any

import pytest

from conduit_py import Batch, Destination, Pipeline, PipelineInvalid, Record, Source, sdk
from conduit_py.graph.compile import compile_pipeline
from conduit_py.testing import ScriptedDestination, ScriptedSource


class Reads(sdk.SourceConnector[sdk.Options]):
    async def read(self, n: int) -> list[Record]:
        raise sdk.EndOfSource


class Writes(sdk.DestinationConnector[sdk.Options]):
    async def write(self, batch: Batch) -> None: ...


class Changes(sdk.Processor[sdk.Options]):
    def process(self, record: Record) -> Record:
        return record


def problems(plugin: Any) -> list[str]:
    source = plugin if isinstance(plugin, sdk.SourceConnector) else ScriptedSource()
    lake = plugin if isinstance(plugin, sdk.DestinationConnector) else ScriptedDestination()
    processors = [plugin] if isinstance(plugin, sdk.Processor) else []
    pipeline = Pipeline(
        "p", sources=[Source("in", source)], processors=processors, destinations=[Destination("out", lake)]
    )
    try:
        compile_pipeline(pipeline)
    except PipelineInvalid as invalid:
        return [f"{each.path}: {each.message} ({each.suggestion})" for each in invalid.problems]
    return []


@pytest.mark.parametrize(
    ("base", "name", "meant"),
    [
        (Reads, "close", "teardown"),
        (Reads, "teardwon", "teardown"),
        (Reads, "setup", "open"),
        (Reads, "acknowledge", "ack"),
        (Reads, "start_postion", "start_position"),
        (Reads, "check_positions", "check_position"),
        (Writes, "shutdown", "teardown"),
        (Writes, "flush_all", "flush"),
        (Writes, "on_create", "on_created"),
        (Writes, "finsh", "finish"),
        (Changes, "teardown", "close"),
        (Changes, "cleanup", "close"),
        (Changes, "setup", "open"),
    ],
)
def test_a_method_that_is_almost_one_of_ours_is_a_problem(base: type[Any], name: str, meant: str) -> None:
    wrong = type("Mine", (base,), {name: lambda self: None, "__module__": "mine"})
    message = f"Mine.{name} is never called: the SDK has no such method (did you mean {meant!r}? If it is your own, "

    (found,) = problems(wrong())
    assert message in found


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (Reads, ["teardown", "close"]),  # its own, which teardown calls
        (Reads, ["_close", "fetch_page", "reader", "connect", "opened"]),
        (Reads, ["open", "setup"]),
        (Writes, ["flush", "flush_all", "write_rows", "reconnect"]),
        (Changes, ["close", "teardown", "processing"]),
    ],
)
def test_methods_of_ones_own_are_none(base: type[Any], names: list[str]) -> None:
    fine = type("Mine", (base,), {name: lambda self, *args: None for name in names} | {"__module__": "mine"})

    assert problems(fine()) == []
