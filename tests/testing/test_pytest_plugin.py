"""The pytest plugin: cheap for everybody, no demands on anybody, and useful to those who use it."""

import pytest

from conduit_py.store.memory import MemoryStore

pytest_plugins = ["pytester"]


def test_other_peoples_tests_pay_for_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_nothing_heavy_is_imported():
            assert "conduit_py.testing.plugin" in sys.modules
            assert not {"trio", "pydantic", "msgspec", "hypothesis", "networkx"} & set(sys.modules)

        async def test_async_tests_are_not_ours(): ...
    """)

    result = pytester.runpytest_subprocess(
        "-p",
        "no:trio",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:anyio",
        "-p",
        "no:xdist",
        "-p",
        "no:schemathesis",
        "--strict-config",
        "--strict-markers",
        "-k",
        "heavy",
    )

    result.assert_outcomes(passed=1, deselected=1)


def test_a_seed_can_be_chosen_for_simulated_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from conduit_py.testing import simulated

        seen = []

        @simulated(seeds=range(10))
        async def test_some(seed):
            seen.append(seed)

        def test_seen():
            assert seen == [77]
    """)

    result = pytester.runpytest_subprocess("--conduit-seed=77")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["conduit-py: simulating with seed 77 only"])


def test_simulated_tests_need_no_other_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import trio
        from conduit_py.testing import simulated

        @simulated(seeds=range(10))
        async def test_fails(tmp_path, seed):
            await trio.sleep(1)
            assert seed != 4
    """)

    result = pytester.runpytest_subprocess("-p", "no:trio", "-p", "no:anyio")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*simulated with seed 4:*", "*pytest --conduit-seed=4 runs this seed alone*"])


def test_a_destination_that_is_tried_without_an_outage_is_pointed_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from conduit_py.sdk import DestinationConnector, Options
        from conduit_py.testing import destination_acceptance

        class ListOptions(Options):
            into: list

        class Board(DestinationConnector[ListOptions]):
            def write(self, batch):
                try:
                    self.options.into.extend(record.payload.after for record in batch)
                except TimeoutError:
                    pass

        def board():
            kept = []
            return Board(into=kept), lambda: kept

        def always_there():
            return *board(), None

        TestBoard = destination_acceptance(board)
        TestAlwaysThere = destination_acceptance(always_there)
    """)

    result = pytester.runpytest_subprocess("-k", "cannot_be_reached", "-p", "no:xdist")

    assert {name: result.parseoutcomes()[name] for name in ("skipped", "warnings")} == {"skipped": 2, "warnings": 1}
    result.stdout.fnmatch_lines(["*UntriedRule: Board may swallow the errors of its client*"])


async def test_the_memory_store_is_a_fixture(memory_store: MemoryStore) -> None:
    assert await memory_store.pipelines() == []
