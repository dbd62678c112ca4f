"""Simulation: one seed, one run, in every process; other seeds, other runs; global state restored."""

import os
import random
import subprocess
import sys
import threading
import time

import pytest
import trio
from trio._core import _run

from conduit_py.errors import EnvironmentUnfit
from conduit_py.testing.simulation import SimulationStuck, simulate, simulated, use_seed


async def race() -> list[object]:
    """Six tasks that meet in a channel, on clocks that tie, with chance mixed in."""
    trace: list[object] = []
    send, receive = trio.open_memory_channel[tuple[int, int]](1)

    async def worker(name: int, own: trio.MemorySendChannel[tuple[int, int]]) -> None:
        async with own:
            for turn in range(4):
                await trio.sleep(turn % 2)
                await own.send((name, turn))

    async with trio.open_nursery() as nursery:
        for name in range(6):
            nursery.start_soon(worker, name, send.clone())
        await send.aclose()
        async for item in receive:
            trace.append((*item, trio.current_time(), random.random()))
    return trace


def test_same_seed_same_run() -> None:
    assert simulate(race, seed=7) == simulate(race, seed=7)


def test_other_seeds_give_other_runs() -> None:
    assert len({str(simulate(race, seed=seed)) for seed in range(50)}) == 50


@pytest.mark.parametrize("first", ["assert 'hypothesis' not in sys.modules", "import hypothesis"])
def test_same_seed_same_run_in_every_process(first: str) -> None:
    code = f"""
import importlib.util, sys, trio
{first}
spec = importlib.util.spec_from_file_location("simulation_under_test", {__file__!r})
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
print(module.simulate(module.race, seed=3))"""

    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "random")
    }

    assert outputs == {f"{simulate(race, seed=3)}\n"}


def test_time_is_virtual_and_starts_at_zero() -> None:
    async def main() -> tuple[float, float]:
        start = trio.current_time()
        await trio.sleep(3000)
        return start, trio.current_time()

    assert simulate(main) == (0, 3000)


def test_arguments_and_result_pass_through() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    assert simulate(add, 1, 2, seed=5) == 3


def test_errors_come_out_as_they_are_with_the_seed_noted() -> None:
    async def main() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        simulate(main, seed=41)
    assert caught.value.__notes__ == ["simulated with seed 41: the same seed repeats this run exactly"]


def test_a_deadlock_is_a_failure_that_says_where() -> None:
    async def wait_for_nothing() -> None:
        await trio.sleep_forever()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_nothing)

    with pytest.raises(SimulationStuck, match="not done after 60 virtual seconds") as caught:
        simulate(main, seconds=60)
    assert "wait_for_nothing" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def test_a_thread_at_work_is_not_a_deadlock() -> None:
    async def main() -> str:
        return await trio.to_thread.run_sync(slow)

    def slow() -> str:
        time.sleep(0.05)
        return "done"

    assert simulate(main, seconds=60) == "done"


@pytest.mark.slow
def test_virtual_time_does_not_wait_for_ever_for_a_thread() -> None:
    never = threading.Event()

    async def main() -> bool:
        with trio.move_on_after(30) as scope:
            await trio.to_thread.run_sync(never.wait, abandon_on_cancel=True)
        return scope.cancelled_caught

    try:
        assert simulate(main, seconds=60)
    finally:
        never.set()


def test_global_state_is_restored_even_after_a_failure() -> None:
    flag, scheduler, chance = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate(), random.getstate()

    def fail() -> None:
        with use_seed(1):
            random.random()
            _run._r.random()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert flag == _run._ALLOW_DETERMINISTIC_SCHEDULING
    assert scheduler == _run._r.getstate()
    assert chance == random.getstate()


def test_a_trio_without_the_private_names_is_refused_clearly() -> None:
    code = """
from trio._core import _run
_run._ALLOW_DETERMINISTIC_SCHEDULING = None
from conduit_py.testing.simulation import simulate
async def main(): pass
try:
    simulate(main)
except Exception as error:
    print(type(error).__name__, error)
"""
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout

    assert output == (
        f"{EnvironmentUnfit.__name__} trio {trio.__version__} cannot be simulated: "
        "its scheduler has no seed to set any more\n"
    )


def test_simulated_runs_every_seed() -> None:
    seen: list[int] = []

    @simulated(seeds=range(5))
    async def body(seed: int) -> None:
        seen.append(seed)

    body()
    assert seen == [0, 1, 2, 3, 4]


def test_simulated_stops_at_the_first_failing_seed() -> None:
    @simulated(seeds=range(5))
    async def body(seed: int) -> None:
        assert seed < 3

    with pytest.raises(AssertionError) as caught:
        body()
    assert caught.value.__notes__[-2:] == [
        "simulated with seed 3: the same seed repeats this run exactly",
        "pytest --conduit-seed=3 runs this seed alone",
    ]


def test_simulated_runs_the_seed_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_SEED", "1234")
    seen: list[int] = []

    @simulated()
    async def body(seed: int) -> None:
        seen.append(seed)

    body()
    assert seen == [1234]


@pytest.fixture
def word() -> str:
    return "word"


@simulated(seeds=[1, 2])
async def test_simulated_tests_take_fixtures(word: str, seed: int) -> None:
    await trio.sleep(seed)
    assert (word, trio.current_time()) == ("word", seed)
