"""The history for charts: sampled, bounded, of pipelines that are there."""

from array import array
from typing import TYPE_CHECKING

import trio
from trio.testing import MockClock

from conduit_py.server.monitoring import SAMPLE_SECONDS, SAMPLES_MAX, ChartHistory

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite


async def test_counters_are_sampled_while_nobody_watches(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", "b") as site, trio.open_nursery() as nursery:
        nursery.start_soon(site.app.state.history.follow, site.service.fleet)
        site.service.fleet.start("a")
        await trio.sleep(3.5 * SAMPLE_SECONDS)
        shown = (await site.client.get("/api/v1/pipelines/a/history")).json()
        idle = (await site.client.get("/api/v1/pipelines/b/history")).json()
        unknown = await site.client.get("/api/v1/pipelines/c/history")
        nursery.cancel_scope.cancel()

    assert shown["interval_seconds"] == SAMPLE_SECONDS
    newest = shown["samples"][-1]
    assert (newest["read"], newest["acked"], newest["dead_letters"]) == (10, 10, 0)
    assert sum(newest["settling"]) == 10
    assert len(newest["settling"]) == len(shown["bounds"]) + 1
    assert 3 <= len(shown["samples"]) <= 4
    assert idle["samples"] == []
    assert unknown.status_code == 404


async def test_old_samples_make_room_and_a_pipeline_that_is_gone_leaves_nothing(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    history = ChartHistory()
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        for _ in range(SAMPLES_MAX + 20):
            await history.sample(site.service.fleet)
        full = history.view("a")
        size = len(history._rows["a"]) * array("d").itemsize
        await site.service.fleet.remove("a")
        await history.sample(site.service.fleet)
        removed = history.view("a")

    assert len(full.samples) == SAMPLES_MAX
    assert [sample.at for sample in full.samples] == sorted(sample.at for sample in full.samples)
    # As the docstring and the docs say: 29 kB a pipeline, 6 MB for two hundred.
    assert size == 28_800
    assert removed.samples == []
