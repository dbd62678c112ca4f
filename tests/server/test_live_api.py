"""The live stream: paced, bounded, and at an end when the server or the client is."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio
from event_client import EventClient
from trio.testing import MockClock

from conduit_py.server.live import CLIENTS_MAX, SEND_SECONDS

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Site


class Client(EventClient):
    """Watches a site; `take` may be slow to take an event."""

    def __init__(
        self, site: "Site", take: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint, query: bytes = b""
    ) -> None:
        super().__init__(site.app, "/api/v1/live", query, take=take)


async def test_at_most_two_events_a_second_until_the_server_ends(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", "b") as site, trio.open_nursery() as nursery:
        client = Client(site)
        site.service.fleet.start("a")
        nursery.start_soon(client.watch)
        await trio.sleep(10.2)
        site.service.closing.set()

    times = [event.at for event in client.named("fleet")]
    assert 20 <= len(times) <= 21
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.5 - 1e-6
    assert client.ended_at == pytest.approx(10.2)
    assert [(each["id"], each["status"]) for each in client.named("fleet")[-1].data["pipelines"]] == [
        ("a", "running"),
        ("b", "created"),
    ]


async def test_a_slow_client_gets_the_newest_and_nothing_is_kept_for_it(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        slow = Client(site, take=partial(trio.sleep, 4))
        nursery.start_soon(slow.watch)
        await trio.sleep(21)
        slow.left.set()

    # Each was made no earlier than the client had taken the one before: four seconds and a half apart.
    assert [round(event.at, 1) for event in slow.events] == [4.0, 8.5, 13.0, 17.5]


async def test_a_client_that_takes_nothing_is_dropped(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        stuck, other = Client(site, take=trio.sleep_forever), Client(site)
        nursery.start_soon(stuck.watch)
        nursery.start_soon(other.watch)
        await trio.sleep(SEND_SECONDS + 1)
        assert stuck.ended_at == SEND_SECONDS
        assert len(other.events) > 20
        other.left.set()

    assert other.ended_at == SEND_SECONDS + 1


async def test_one_client_too_many_is_refused_until_another_leaves(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        clients = [Client(site) for _ in range(CLIENTS_MAX)]
        for client in clients:
            nursery.start_soon(client.watch)
        await trio.sleep(1)
        late = Client(site)
        await late.watch()
        assert late.status == 409
        clients[0].left.set()
        await trio.sleep(1)
        later = Client(site)
        nursery.start_soon(later.watch)
        await trio.sleep(1)
        assert later.status == 200
        site.service.closing.set()

    assert all(client.ended_at is not None for client in clients)


async def test_one_pipeline_comes_with_its_nodes_and_the_others_less_often(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", "b") as site, trio.open_nursery() as nursery:
        client = Client(site, query=b"pipeline=a")
        site.service.fleet.start("a")
        nursery.start_soon(client.watch)
        await trio.sleep(10.2)
        site.service.closing.set()

    assert 20 <= len(client.named("pipeline")) <= 21
    assert 5 <= len(client.named("fleet")) <= 6
    assert [each["id"] for each in client.named("fleet")[-1].data["pipelines"]] == ["a", "b"]
    shown = client.named("pipeline")[-1].data["pipeline"]
    assert shown["id"] == "a"
    assert [(node["id"], node["records"], node["acked"]) for node in shown["nodes"]] == [
        ("source", 10, 10),
        ("to", 10, 0),
    ]
    assert sum(shown["nodes"][0]["settling"]["counts"]) == 10


async def test_a_pipeline_that_is_not_there_is_refused_and_one_that_is_removed_ends_its_stream(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", "b") as site, trio.open_nursery() as nursery:
        answer = await site.client.get("/api/v1/live", params={"pipeline": "c"})
        client = Client(site, query=b"pipeline=a")
        nursery.start_soon(client.watch)
        await trio.sleep(3.2)
        await site.service.fleet.remove("a")
        await trio.sleep(3)

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "pipeline.unknown"
    assert client.ended_at == pytest.approx(3.5)
