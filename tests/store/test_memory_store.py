"""What the memory store adds for the tests of others: scripted failure, a log, the same run every time."""

import pytest
from trio.testing import assert_checkpoints

from conduit_py.errors import StateFailed
from conduit_py.status import PipelineState
from conduit_py.store.memory import MemoryStore


async def test_it_fails_after_the_given_number_of_writes_of_any_kind_until_mended() -> None:
    store = MemoryStore(fail_after=2)
    await store.save_positions("orders", {"web": b"1"})
    await store.save_state("orders", PipelineState())
    for _ in range(2):
        with pytest.raises(StateFailed, match="fails after 2 writes"):
            await store.save_positions("orders", {"web": b"2"})
    while_broken = await store.positions("orders")
    store.fail_after = None
    await store.save_positions("orders", {"web": b"3"})

    assert while_broken == {"web": b"1"}
    assert await store.positions("orders") == {"web": b"3"}
    assert store.saved == [("orders", {"web": b"1"}), ("orders", {"web": b"3"})]
    assert store.writes == 3


async def test_it_logs_saved_positions_in_order_and_nothing_else() -> None:
    store = MemoryStore()
    await store.save_positions("orders", {"web": b"1", "shop": b"1"})
    await store.save_state("orders", PipelineState())
    await store.save_positions("orders", {})
    await store.save_positions("returns", {"web": b"1"})
    await store.forget_positions("orders")

    assert store.saved == [("orders", {"web": b"1", "shop": b"1"}), ("returns", {"web": b"1"})]


async def test_every_read_and_write_passes_a_checkpoint() -> None:
    store = MemoryStore()

    with assert_checkpoints():
        await store.save_positions("orders", {"web": b"1"})
    with assert_checkpoints():
        await store.save_positions("orders", {})
    with assert_checkpoints():
        await store.positions("orders")
