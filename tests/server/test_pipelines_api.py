"""Pipelines and positions over HTTP, in process and in virtual time."""

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import trio
from conduit_connectors import memory
from pydantic import SecretStr
from trio.testing import MockClock

from conduit_py import Destination, FatalError, Pipeline, Record, Source, State, processor, sdk
from conduit_py.testing import Block, Fail, ScriptedSource
from conduit_py.testing.fake_destinations import FakeStagedDestination, FakeStorage

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite


def code(answer: Any) -> str:
    return str(answer.json()["error"]["code"])


async def test_pipelines_are_listed_with_status_and_progress(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", "b") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        answer = await site.client.get("/api/v1/pipelines")

    assert answer.status_code == 200
    first, second = answer.json()["pipelines"]
    assert (first["id"], first["description"], first["status"]) == ("a", "the pipeline a", "running")
    assert (first["progress"]["read"], first["progress"]["acked"], first["progress"]["in_flight"]) == (10, 10, 0)
    assert (second["id"], second["status"], second["progress"], second["error"]) == ("b", "created", None, None)


async def test_a_pipeline_is_shown_with_its_graph_and_counters(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        shown = (await site.client.get("/api/v1/pipelines/a")).json()

    assert [(node["id"], node["kind"], node["records"]) for node in shown["nodes"]] == [
        ("source", "source", 10),
        ("to", "destination", 10),
    ]
    assert shown["edges"] == [["source", "to"]]
    assert shown["delivery"] == "at_least_once"
    [guarantee] = shown["guarantees"]
    assert [guarantee[name] for name in ("source", "destination", "promise", "order")] == [
        "source", "to", "at least once", "in order",
    ]  # fmt: skip
    assert "sent again" in guarantee["why"]
    assert shown["dead_letters"] == {"handler": "stop", "window_size": 0, "window_nack_threshold": 0, "records": 0}


async def test_an_unknown_pipeline_is_404_with_a_code_and_a_suggestion(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("orders") as site:
        answer = await site.client.get("/api/v1/pipelines/order")

    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "code": "pipeline.unknown",
            "message": "there is no pipeline 'order'",
            "suggestion": "pipelines are orders",
        }
    }


async def test_start_stop_and_restart(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        post = site.client.post
        assert (await post("/api/v1/pipelines/a/stop")).status_code == 409
        assert (await post("/api/v1/pipelines/a/start")).status_code == 202
        assert code(await post("/api/v1/pipelines/a/start")) == "pipeline.running"
        await site.wait_until_settled()
        stopped = await post("/api/v1/pipelines/a/stop")
        assert (stopped.status_code, stopped.json()) == (202, {"id": "a", "status": "stopping"})
        await site.wait_until_settled()
        shown = (await site.client.get("/api/v1/pipelines/a")).json()
        assert (shown["status"], shown["stopped_by"]) == ("stopped", "user")
        assert code(await post("/api/v1/pipelines/a/stop")) == "pipeline.not_running"
        assert (await post("/api/v1/pipelines/a/restart")).status_code == 202
        await site.wait_until_settled()
        assert (await post("/api/v1/pipelines/a/restart")).status_code == 202
        await site.wait_until_settled()
        shown = (await site.client.get("/api/v1/pipelines/a")).json()
        assert shown["status"] == "running"

    assert len(site.log.did("open")) == 2 * 3
    site.log.check(after_run=True)


async def test_two_restarts_at_once_are_one(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        answers = [await site.client.post("/api/v1/pipelines/a/restart") for _ in range(3)]
        await site.wait_until_settled()
        assert site.service.fleet["a"].state.status == "running"

    assert [answer.status_code for answer in answers] == [202, 202, 202]


async def test_force_stops_a_pipeline_that_is_stuck(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", destination={"script": {3: Block()}}) as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        await site.client.post("/api/v1/pipelines/a/stop")
        await site.wait_until_settled()
        assert (await site.client.get("/api/v1/pipelines/a")).json()["status"] == "stopping"
        await site.client.post("/api/v1/pipelines/a/stop", json={"force": True})
        await site.wait_until_settled()
        assert (await site.client.get("/api/v1/pipelines/a")).json()["status"] == "stopped"


async def test_the_first_error_is_shown_with_its_node(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", destination={"script": {3: Fail("gone", error=FatalError)}}) as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        shown = (await site.client.get("/api/v1/pipelines/a")).json()

    assert shown["status"] == "degraded"
    assert (shown["error"]["code"], shown["error"]["node"]) == ("run.fatal", "to")


async def test_nothing_is_started_while_the_server_ends(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        site.service.closing.set()
        await site.service.fleet.shutdown(1)
        for command in ("start", "restart"):
            answer = await site.client.post(f"/api/v1/pipelines/a/{command}")
            assert (answer.status_code, code(answer)) == (503, "server.shutting_down")


async def test_positions_are_shown_set_and_reset_while_stopped(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    path = "/api/v1/pipelines/a/positions"
    async with open_site("a") as site:
        assert (await site.client.get(path)).json() == {"positions": {"source": None}}
        site.service.fleet.start("a")
        await site.wait_until_settled()
        before = (await site.client.get(path)).json()["positions"]["source"]
        busy = await site.client.put(f"{path}/source", json={"position": before})
        assert (busy.status_code, code(busy)) == (409, "pipeline.running")
        await site.client.post("/api/v1/pipelines/a/stop")
        await site.wait_until_settled()
        other = b64encode(b"another").decode()
        put = await site.client.put(f"{path}/source", json={"position": other})
        assert (put.status_code, put.json()) == (200, {"positions": {"source": other}})
        assert await site.service.store.positions("a") == {"source": b"another"}
        assert (await site.client.delete(f"{path}/source")).json() == {"positions": {"source": None}}
        assert await site.service.store.positions("a") == {}
        assert (await site.client.delete(f"{path}/elsewhere")).status_code == 404


async def test_a_source_is_set_back_to_a_point_of_its_history(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    path = "/api/v1/pipelines/a/positions/source"
    async with open_site("a", records=3) as site:
        assert (await site.client.get(f"{path}/history")).json() == {"points": []}
        await site.client.post("/api/v1/pipelines/a/start")
        await site.wait_until_settled()
        busy = await site.client.post(f"{path}/replay", json={"from": "start"})
        await site.client.post("/api/v1/pipelines/a/stop")
        await site.wait_until_settled()
        points = (await site.client.get(f"{path}/history")).json()["points"]
        early = await site.client.post(f"{path}/replay", json={"from": "2001-01-01T00:00:00Z"})
        late = await site.client.post(f"{path}/replay", json={"from": "2999-01-01T00:00:00+01:00"})
        start = await site.client.post(f"{path}/replay", json={"from": "start"})
        wrong = [
            await site.client.post(f"{path}/replay", json=body)
            for body in ({"from": "yesterday"}, {"from": "2026-11-16T03:00"}, {}, {"from": "start", "to": "end"})
        ]

    assert [(point["position"], point["start"]) for point in points] == [(None, True), ("Mg==", False)]
    assert (busy.status_code, code(busy)) == (409, "pipeline.running")
    assert (early.status_code, code(early)) == (409, "position.unknown")
    assert (late.status_code, late.json()) == (200, {"positions": {"source": "Mg=="}, "point": points[1]})
    assert start.json() == {"positions": {"source": None}, "point": None}
    assert [answer.status_code for answer in wrong] == [422] * 4


async def test_a_pipeline_starts_over_while_stopped(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        busy = await site.client.post("/api/v1/pipelines/a/reset")
        await site.client.post("/api/v1/pipelines/a/stop")
        await site.wait_until_settled()
        before = await site.service.store.positions("a")
        over = await site.client.post("/api/v1/pipelines/a/reset")
        after = await site.service.store.positions("a")

    assert (busy.status_code, code(busy)) == (409, "pipeline.running")
    assert (over.status_code, over.json()) == (200, {"id": "a", "status": "stopped"})
    assert (list(before), after) == (["source"], {})


async def test_a_position_that_is_bound_to_state_is_changed_only_on_purpose(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    @processor(state=True)
    def counted(record: Record, state: State) -> Record:
        state.put("count", state.get("count", 0) + 1)
        return record

    pipeline = Pipeline(
        "sums",
        sources=[Source("s", memory.Source(records=[{"n": 0}]))],
        processors=[counted],
        destinations=[Destination("d", FakeStagedDestination(storage=FakeStorage()))],
        delivery="exactly_once",
    )
    path = "/api/v1/pipelines/sums/positions/s"
    async with open_site("a") as site:
        await site.service.fleet.add(pipeline)
        site.service.fleet.start("sums")
        await site.service.fleet["sums"].ended.wait()
        keep: dict[str, Any] = {"keep_state": True}
        refused = [
            await site.client.put(path, json={"position": "bWVtb3J5OjE6MA=="}),
            await site.client.delete(path),
            await site.client.post(f"{path}/replay", json={"from": "start"}),
        ]
        done = [
            await site.client.put(path, json={"position": "bWVtb3J5OjE6MA==", **keep}),
            await site.client.delete(path, params=keep),
            await site.client.post(f"{path}/replay", json={"from": "start", **keep}),
        ]

    assert [(answer.status_code, code(answer)) for answer in refused] == [(409, "position.bound")] * 3
    assert [(answer.status_code, answer.json()["positions"]["s"]) for answer in done] == [
        (200, "bWVtb3J5OjE6MA=="),
        (200, None),
        (200, None),
    ]


async def test_a_position_that_the_source_did_not_make_is_refused_and_not_stored(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    pipeline = Pipeline(
        "short",
        sources=[Source("s", memory.Source(records=[]))],
        destinations=[Destination("d", FakeStagedDestination(storage=FakeStorage()))],
    )
    path = "/api/v1/pipelines/short/positions"
    async with open_site("a") as site:
        await site.service.fleet.add(pipeline)
        refused = await site.client.put(f"{path}/s", json={"position": "MQ=="})
        stored = (await site.client.get(path)).json()["positions"]

    assert (refused.status_code, code(refused), stored) == (409, "position.invalid", {"s": None})


async def test_a_position_that_is_not_base64_is_refused_with_its_path(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site:
        answer = await site.client.put("/api/v1/pipelines/a/positions/source", json={"position": "abc"})
        assert await site.service.store.positions("a") == {}

    assert answer.status_code == 422
    assert (code(answer), answer.json()["error"]["path"]) == ("request.invalid", "body.position")


class GuardedOptions(sdk.Options):
    password: SecretStr


class Guarded(sdk.DestinationConnector[GuardedOptions]):
    """Fails with its password in the message, as drivers do."""

    async def write(self, batch: sdk.Batch) -> None:
        await trio.lowlevel.checkpoint()
        raise sdk.FatalError(f"cannot log in with {self.options.password.get_secret_value()}")


async def test_no_secret_and_no_option_is_ever_shown(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site() as site:
        guarded = Guarded(password="correct-horse-battery")
        source = Source("source", ScriptedSource(records=1, name="g", log=site.log))
        quoting, to = "with correct-horse-battery", Destination("to", guarded)
        await site.service.fleet.add(Pipeline("g", description=quoting, sources=[source], destinations=[to]))
        site.service.fleet.start("g")
        await site.wait_until_settled()
        answers = [await site.client.get(path) for path in ("/api/v1/pipelines", "/api/v1/pipelines/g", "/readyz")]

    assert answers[1].json()["error"]["message"] == "cannot log in with ***"
    assert answers[1].json()["description"] == "with ***"
    for answer in answers:
        assert "correct-horse" not in answer.text
        assert "password" not in answer.text
