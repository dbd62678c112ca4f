"""Taps over HTTP: records as events, paced, bounded, without secrets, and at an end when the server is."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from event_client import EventClient
from trio.testing import MockClock

from conduit_py.inspect.tap import BUFFER_SIZE
from conduit_py.record import Record
from conduit_py.redaction import SECRETS
from conduit_py.server.taps import QUIET_SECONDS, TAPS_MAX
from conduit_py.testing import Fail

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Site


class Client(EventClient):
    """Taps a node of a site; `take` may be slow to take a record."""

    def __init__(
        self,
        site: "Site",
        node: str,
        query: bytes = b"",
        *,
        take: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        super().__init__(site.app, f"/api/v1/pipelines/a/nodes/{node}/tap", query, take=take, taken="record")

    @property
    def records(self) -> list[Any]:
        return [event.data for event in self.named("record")]


async def test_a_tap_opened_before_the_start_shows_every_record(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", records=3) as site, trio.open_nursery() as nursery:
        client = Client(site, "to")
        nursery.start_soon(client.watch)
        await trio.sleep(1)
        site.service.fleet.start("a")
        await trio.sleep(1)
        site.service.closing.set()

    assert client.status == 200
    assert [data["message"] for data in client.records] == [
        {"source": "source", "sequence": n, "piece": [], "position": position}
        for n, position in enumerate(["MA==", "MQ==", "Mg=="])
    ]
    first = client.records[0]
    assert first["before"]["payload"]["after"]["n"] == 0
    assert (first["after"], first["outcome"], first["error"], first["cut"]) == (None, "written", None, [])
    assert client.ended_at is not None
    assert 2 <= client.ended_at <= 3


async def test_the_stream_ends_with_its_limit_and_says_what_it_skipped(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", records=1000) as site:
        client = Client(site, "source", b"rate=2&limit=3")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.watch)
            await trio.sleep(0.1)
            site.service.fleet.start("a")
            await trio.sleep(5)
            client.left.set()

    assert [data["message"]["sequence"] for data in client.records] == [0, 1]
    assert client.ended_at == 5.1


async def test_a_tap_goes_on_over_a_restart_of_the_pipeline(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    destination = {"script": {4: Fail("link down")}}
    async with open_site("a", records=6, destination=destination) as site, trio.open_nursery() as nursery:
        client = Client(site, "source", b"rate=100")
        nursery.start_soon(client.watch)
        site.service.fleet.start("a")
        await trio.sleep(10)
        site.service.closing.set()

    assert [data["message"]["sequence"] for data in client.records] == [*range(6), *range(6)]


async def test_a_slow_client_gets_how_much_it_missed_and_the_pipeline_nothing(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", records=500) as site, trio.open_nursery() as nursery:
        client = Client(site, "to", b"rate=1000", take=partial(trio.sleep, 5))
        nursery.start_soon(client.watch)
        await trio.sleep(0.1)
        site.service.fleet.start("a")
        await trio.sleep(4)
        acked = len(site.log.acked["a"])
        await trio.sleep(30)
        client.left.set()

    assert acked == 500
    # The one that the client was about to take when the others came is not among those kept.
    assert sum(event.data["count"] for event in client.named("dropped")) == 500 - BUFFER_SIZE - 1


async def test_a_client_that_takes_nothing_is_let_go_and_its_tap_with_it(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        client = Client(site, "to", take=trio.sleep_forever)
        nursery.start_soon(client.watch)
        site.service.fleet.start("a")
        await trio.sleep(30)

        assert client.ended_at is not None
        assert site.service.fleet["a"].taps.point("to").taps == []


async def test_no_secret_is_shown(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    secret = "tap-pa55w0rd-of-this-test"
    SECRETS.add(secret)
    records = [Record.of({"url": f"db://me:{secret}@host"}, key=secret.encode(), position=b"1")]
    async with open_site("a", records=records) as site, trio.open_nursery() as nursery:
        client = Client(site, "to")
        nursery.start_soon(client.watch)
        await trio.sleep(0.1)
        site.service.fleet.start("a")
        await trio.sleep(1)
        site.service.closing.set()

    assert client.records[0]["before"]["payload"]["after"] == {"url": "db://me:***@host"}
    assert client.records[0]["before"]["key"] == "Kioq"


async def test_while_nothing_happens_a_comment_keeps_the_connection(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        client = Client(site, "to")
        nursery.start_soon(client.watch)
        await trio.sleep(2 * QUIET_SECONDS + 1)
        client.left.set()

    assert client.body == b": attached\n\n: quiet\n\n: quiet\n\n"


async def test_a_pipeline_that_is_removed_ends_its_taps(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        client = Client(site, "to")
        nursery.start_soon(client.watch)
        await trio.sleep(5)
        await site.service.fleet.remove("a")

    assert client.ended_at is not None
    assert client.ended_at <= 6


async def test_one_tap_too_many_is_refused_until_another_ends(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site, trio.open_nursery() as nursery:
        clients = [Client(site, "to") for _ in range(TAPS_MAX)]
        for client in clients:
            nursery.start_soon(client.watch)
        await trio.sleep(1)
        refused = await site.client.get("/api/v1/pipelines/a/nodes/to/tap")
        clients[0].left.set()
        await trio.sleep(1)
        later = Client(site, "to")
        nursery.start_soon(later.watch)
        await trio.sleep(1)
        site.service.closing.set()

    assert refused.status_code == 409
    assert refused.json()["error"] == {
        "code": "tap.full",
        "message": "20 taps are open already, which is the most",
        "suggestion": "close one of them first",
    }
    assert later.status == 200


async def test_a_tap_shows_only_what_its_condition_is_true_for(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a", records=6) as site, trio.open_nursery() as nursery:
        client = Client(site, "to", b"when=payload.n%20%25%202%20%3D%3D%201")
        nursery.start_soon(client.watch)
        await trio.sleep(1)
        site.service.fleet.start("a")
        await trio.sleep(1)
        wrong = await site.client.get("/api/v1/pipelines/a/nodes/to/tap", params={"when": "payload.n >"})
        site.service.closing.set()

    assert [each["before"]["payload"]["after"]["n"] for each in client.records] == [1, 3, 5]
    assert wrong.status_code == 409
    assert "is no CEL" in wrong.json()["error"]["message"]


async def test_what_cannot_be_tapped_is_named(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        unknown = await site.client.get("/api/v1/pipelines/a/nodes/nowhere/tap")
        nothing = await site.client.get("/api/v1/pipelines/b/nodes/to/tap")
        wrong = await site.client.get("/api/v1/pipelines/a/nodes/to/tap?rate=0")

    assert (unknown.status_code, unknown.json()["error"]["suggestion"]) == (404, "nodes are source, to")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "pipeline.unknown")
    assert (wrong.status_code, wrong.json()["error"]["path"]) == (422, "query.rate")
