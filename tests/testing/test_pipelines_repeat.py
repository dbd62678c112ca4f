"""Same seed, same run: of a whole pipeline with failures, back-off and late answers, in every process."""

import os
import subprocess
import sys

from conduit_py import DeadLetters, Destination, Pipeline, Recovery, Retry, Source
from conduit_py.sdk import AckMode
from conduit_py.testing.crash import OutageStore
from conduit_py.testing.event_log import EventLog
from conduit_py.testing.harness import run_to_end
from conduit_py.testing.script import Delay, Fail, Idle, OnAck, OnAnswer, Refuse
from conduit_py.testing.scripted_destination import ScriptedDestination
from conduit_py.testing.scripted_source import ScriptedSource
from conduit_py.testing.simulation import simulate


def trace(seed: int) -> list[str]:
    """Everything that the ends and the store of an eventful pipeline see, with the virtual times."""
    log = EventLog()
    late = {1: OnAnswer(Delay(0.3)), 7: Fail(times=2), 11: (Delay(0.1), Refuse())}
    pipeline = Pipeline(
        "eventful",
        sources=[
            Source("a", ScriptedSource(log=log, name="a", records=20, chunks=[3, 1], script={9: Idle(3)}), window=8),
            Source("b", ScriptedSource(log=log, name="b", records=15, script={4: OnAck(Fail()), 6: Fail(times=2)})),
        ],
        destinations=[
            Destination("later", ScriptedDestination(log=log, name="later", acks=AckMode.LATER, script=late)),
            Destination("flush", ScriptedDestination(log=log, name="flush", acks=AckMode.FLUSH), retry=Retry()),
        ],
        dead_letters=DeadLetters(ScriptedDestination(log=log, name="letters")),
        recovery=Recovery(retries=None),
    )
    simulate(run_to_end, pipeline, OutageStore(log), seed=seed)
    return log.trace()


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    code = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("repeated", {__file__!r})
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
print("\\n".join(module.trace(5)))"""

    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for hash_seed in ("0", "random")
    ]

    assert outputs == [trace(5), trace(5)]


def test_other_seeds_give_other_runs() -> None:
    assert len({"\n".join(trace(seed)) for seed in range(10)}) == 10
