"""Any interleaving of writes: the last durable value of every key wins, and survives reopening."""

import tempfile
from pathlib import Path

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store

SOURCES = ("web", "shop", "fax")
Write = dict[str, bytes] | None
"""Positions to save, or None: forget them all."""

save = st.dictionaries(st.sampled_from(SOURCES), st.binary(max_size=20))
write = st.one_of(save, st.none())
histories = st.dictionaries(st.text("abc.:-", min_size=1, max_size=3), st.lists(write, max_size=6), max_size=8)


async def perform(store: Store, histories: dict[str, list[Write]]) -> dict[str, dict[str, bytes]]:
    """Run the writes of every pipeline in a task of its own; returns what each must end with."""
    expected: dict[str, dict[str, bytes]] = {}

    async def perform_one(pipeline: str, writes: list[Write]) -> None:
        last: dict[str, bytes] = {}
        for positions in writes:
            if positions is None:
                await store.forget_positions(pipeline)
                last = {}
            else:
                await store.save_positions(pipeline, positions)
                last |= positions
            # Durable when it returns: nobody else writes this pipeline.
            assert await store.positions(pipeline) == last
        expected[pipeline] = last

    async with trio.open_nursery() as nursery:
        for pipeline, writes in histories.items():
            nursery.start_soon(perform_one, pipeline, writes)
    return expected


async def contents(store: Store) -> dict[str, dict[str, bytes]]:
    return {pipeline: await store.positions(pipeline) for pipeline in await store.pipelines()}


@settings(max_examples=60, deadline=None)
@given(histories)
async def test_the_last_durable_value_wins_in_any_interleaving(histories: dict[str, list[Write]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with await SqliteStore.open(Path(directory)) as store:
            expected = await perform(store, histories)
            remembered = {pipeline: positions for pipeline, positions in expected.items() if positions}
            assert await contents(store) == remembered
        async with await SqliteStore.open(Path(directory)) as reopened:
            assert await contents(reopened) == remembered

    memory = MemoryStore()
    await perform(memory, histories)
    assert await contents(memory) == remembered


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.dictionaries(st.sampled_from(SOURCES), st.binary(max_size=8)), st.booleans()), max_size=12)
)
async def test_cancelled_writes_are_whole_or_absent(writes: list[tuple[dict[str, bytes], bool]]) -> None:
    # One writer, some of whose calls are cancelled while the thread may be anywhere: afterwards every
    # source has the value of its last completed save or of a cancelled one after it.
    possible: dict[str, set[bytes | None]] = {source: {None} for source in SOURCES}
    with tempfile.TemporaryDirectory() as directory:
        async with await SqliteStore.open(Path(directory)) as store:
            for positions, cancelled in writes:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.save_positions, "orders", positions)
                    await trio.lowlevel.checkpoint()
                    if cancelled:
                        nursery.cancel_scope.cancel()
                for source, value in positions.items():
                    possible[source] = possible[source] | {value} if cancelled else {value}
        async with await SqliteStore.open(Path(directory)) as reopened:
            found = await reopened.positions("orders")

    assert all(found.get(source) in possible[source] for source in SOURCES)
