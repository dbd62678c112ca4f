"""What every store promises, whatever it is made of."""

import pytest
import trio

from conduit_py.errors import StateFailed
from conduit_py.status import LastError, PipelineState, Status, Stopper
from conduit_py.store.store import ConnectorEntry, Store

FILE = ConnectorEntry("source", "file", {"path": "a.jsonl", "token": "***", "sizes": [1, 2**70]}, "c0ffee")


async def test_an_unknown_pipeline_has_no_positions_no_connectors_and_a_fresh_state(store: Store) -> None:
    state = await store.state("orders")

    assert await store.positions("orders") == {}
    assert await store.connectors("orders") == {}
    assert (state.status, state.stopped_by, state.error) == (Status.CREATED, None, None)
    assert await store.pipelines() == []


async def test_a_saved_position_replaces_only_that_of_its_own_source(store: Store) -> None:
    await store.save_positions("orders", {"web": b"1", "shop": b"\x00\xff"})
    await store.save_positions("returns", {"web": b"9"})
    await store.save_positions("orders", {"web": b"2"})

    assert await store.positions("orders") == {"web": b"2", "shop": b"\x00\xff"}
    assert await store.positions("returns") == {"web": b"9"}


async def test_the_start_of_a_source_does_not_set_back_what_is_committed(store: Store) -> None:
    await store.save_positions("orders", {"web": b"100"})
    await store.start_position("orders", "web", b"start")
    await store.start_position("orders", "shop", b"start")
    await store.start_position("orders", "shop", b"another start")

    assert await store.positions("orders") == {"web": b"100", "shop": b"start"}


async def test_an_empty_position_is_not_an_absent_one(store: Store) -> None:
    await store.save_positions("orders", {"web": b""})

    assert await store.positions("orders") == {"web": b""}


async def test_saving_no_positions_remembers_nothing(store: Store) -> None:
    await store.save_positions("orders", {})

    assert await store.pipelines() == []


async def test_many_positions_are_saved_in_one_step(store: Store) -> None:
    positions = {f"source-{number:04}": b"%d" % number for number in range(1000)}
    await store.save_positions("orders", positions)

    assert await store.positions("orders") == positions


async def test_a_position_that_is_not_bytes_is_refused_by_name_and_nothing_is_saved(store: Store) -> None:
    with pytest.raises(TypeError, match="position of source 'shop' must be bytes, not str"):
        await store.save_positions("orders", {"web": b"1", "shop": "2"})  # type: ignore[dict-item]

    assert await store.positions("orders") == {}


async def test_positions_are_forgotten_for_one_source_or_for_all_of_a_pipeline(store: Store) -> None:
    await store.save_positions("orders", {"web": b"1", "shop": b"2", "fax": b"3"})
    await store.save_positions("returns", {"web": b"4"})
    await store.save_state("orders", PipelineState(Status.STOPPED))
    await store.forget_positions("orders", "web")
    await store.forget_positions("orders", "unknown")
    left_of_one = await store.positions("orders")
    await store.forget_positions("orders")

    assert left_of_one == {"shop": b"2", "fax": b"3"}
    assert await store.positions("orders") == {}
    assert await store.positions("returns") == {"web": b"4"}
    assert (await store.state("orders")).status is Status.STOPPED


async def test_a_state_comes_back_as_it_was_saved(store: Store) -> None:
    first = PipelineState(Status.STOPPED, Stopper.SYSTEM, since=12.5)
    second = PipelineState(
        Status.DEGRADED, error=LastError("node.failed", "lake: write failed: ümlaut", "lake", None, 1.5), since=13.25
    )
    await store.save_state("orders", first)
    read_first = await store.state("orders")
    await store.save_state("orders", second)

    assert read_first == first
    assert await store.state("orders") == second


async def test_connectors_are_remembered_by_node_until_forgotten(store: Store) -> None:
    lake = ConnectorEntry("destination", "", {}, "00")
    await store.save_connector("orders", "web", ConnectorEntry("source", "file", {"path": "old"}, "01"))
    await store.save_connector("orders", "web", FILE)
    await store.save_connector("orders", "lake", lake)
    both = await store.connectors("orders")
    await store.forget_connector("orders", "web")
    await store.forget_connector("orders", "unknown")

    assert both == {"web": FILE, "lake": lake}
    assert await store.connectors("orders") == {"lake": lake}


async def test_what_is_read_shares_nothing_with_what_was_saved(store: Store) -> None:
    positions = {"web": b"1"}
    entry = ConnectorEntry("source", "file", {"path": "a"}, "01")
    await store.save_positions("orders", positions)
    await store.save_connector("orders", "web", entry)
    positions["web"] = b"changed"
    entry.options["path"] = "changed"
    (await store.positions("orders"))["web"] = b"changed too"

    assert await store.positions("orders") == {"web": b"1"}
    assert (await store.connectors("orders"))["web"].options == {"path": "a"}


async def test_pipelines_of_which_anything_is_remembered_are_listed_in_order(store: Store) -> None:
    await store.save_positions("c", {"web": b"1"})
    await store.save_state("a", PipelineState())
    await store.save_connector("b", "web", FILE)
    await store.save_state("c", PipelineState())
    await store.save_positions("d", {"web": b"1"})
    await store.forget_positions("d")

    assert await store.pipelines() == ["a", "b", "c"]


async def test_concurrent_saves_all_become_durable(store: Store) -> None:
    async def save(number: int) -> None:
        for step in range(5):
            await store.save_positions(f"pipeline-{number}", {"web": b"%d" % step})

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(save, number)

    assert [await store.positions(f"pipeline-{number}") for number in range(100)] == [{"web": b"4"}] * 100


async def test_a_task_reads_what_it_has_saved_while_others_save(store: Store) -> None:
    async def save_and_read(number: int) -> None:
        for step in range(20):
            await store.save_positions("orders", {f"source-{number}": b"%d" % step})
            assert (await store.positions("orders"))[f"source-{number}"] == b"%d" % step

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(save_and_read, number)

    assert await store.positions("orders") == {f"source-{number}": b"19" for number in range(20)}


async def test_a_save_and_a_later_forget_keep_their_order(store: Store) -> None:
    async def save_forget_save(number: int) -> None:
        await store.save_positions("orders", {f"source-{number}": b"old", f"other-{number}": b"kept"})
        await store.forget_positions("orders", f"source-{number}")
        if number % 2:
            await store.save_positions("orders", {f"source-{number}": b"new"})

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(save_forget_save, number)

    expected = {f"other-{number}": b"kept" for number in range(50)}
    expected |= {f"source-{number}": b"new" for number in range(1, 50, 2)}
    assert await store.positions("orders") == expected


async def test_a_cancelled_caller_writes_nothing_if_it_was_cancelled_before_it_began(store: Store) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.save_positions("orders", {"web": b"1"})

    assert scope.cancelled_caught
    assert await store.positions("orders") == {}


async def test_a_closed_store_refuses_every_call_and_may_be_closed_again(store: Store) -> None:
    await store.close()
    await store.close()

    with pytest.raises(StateFailed, match="closed"):
        await store.save_positions("orders", {"web": b"1"})
    with pytest.raises(StateFailed, match="closed"):
        await store.forget_positions("orders")
    with pytest.raises(StateFailed, match="closed"):
        await store.positions("orders")
    with pytest.raises(StateFailed, match="closed"):
        await store.pipelines()


async def test_a_store_closes_even_when_its_owner_is_cancelled(store: Store) -> None:
    with trio.CancelScope() as scope:
        async with store:
            scope.cancel()

    with pytest.raises(StateFailed, match="closed"):
        await store.positions("orders")
