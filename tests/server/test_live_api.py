"""The live stream: paced, bounded, and at an end when the server or the client is."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from starlette.types import Message, Scope
from trio.testing import MockClock

from conduit_py.server.event_stream import SEND_SECONDS
from conduit_py.server.live import CLIENTS_MAX

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Site

SCOPE: Scope = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.1"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/api/v1/live",
    "raw_path": b"/api/v1/live",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"localhost")],
    "state": {},
}


class Client:
    """Watches a site and keeps what it is sent and when; `take` may take its time."""

    def __init__(
        self, site: "Site", take: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint, query: bytes = b""
    ) -> None:
        self._site = site
        self._query = query
        self._take = take
        self._asked = False
        self.left = trio.Event()
        self.status = 0
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.pipelines: list[tuple[float, dict[str, Any]]] = []
        self.ended_at: float | None = None

    async def watch(self) -> None:
        await self._site.app({**SCOPE, "query_string": self._query}, self._receive, self._send)
        self.ended_at = trio.current_time()

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body", b"").startswith(b"event: "):
            await self._take()
            for event in message["body"].removesuffix(b"\n\n").split(b"\n\n"):
                name, _, data = event.removeprefix(b"event: ").partition(b"\ndata: ")
                kept = {b"fleet": self.events, b"pipeline": self.pipelines}[name]
                kept.append((trio.current_time(), json.loads(data)))


async def test_at_most_two_events_a_second_until_the_server_ends(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", "b") as site, trio.open_nursery() as nursery:
        client = Client(site)
        site.service.fleet.start("a")
        nursery.start_soon(client.watch)
        await trio.sleep(10.2)
        site.service.closing.set()

    times = [time for time, _ in client.events]
    assert 20 <= len(times) <= 21
    assert min(later - earlier for earlier, later in pairwise(times)) >= 0.5 - 1e-6
    assert client.ended_at == pytest.approx(10.2)
    assert [(each["id"], each["status"]) for each in client.events[-1][1]["pipelines"]] == [
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
    assert [round(time, 1) for time, _ in slow.events] == [4.0, 8.5, 13.0, 17.5]


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

    assert 20 <= len(client.pipelines) <= 21
    assert 5 <= len(client.events) <= 6
    assert [each["id"] for each in client.events[-1][1]["pipelines"]] == ["a", "b"]
    shown = client.pipelines[-1][1]["pipeline"]
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
