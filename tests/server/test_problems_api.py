"""Errors of every kind have one shape, and health, plugins and limits say what they must."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import httpx2
import pytest
import trio
from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector
from trio.testing import MockClock

from conduit_py.server.limits import BYTES_MAX
from conduit_py.testing import Block

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "path.unknown"),
        ("GET", "/api/v1/pipelines/", 404, "path.unknown"),
        ("GET", "/api/v1/pipelines/bad%20id", 422, "request.invalid"),
        ("DELETE", "/api/v1/pipelines", 405, "method.not_allowed"),
        ("POST", "/api/v1/pipelines/x/start", 404, "pipeline.unknown"),
        ("GET", "/api/v1/plugins/source/x", 404, "plugin.unknown"),
        ("GET", "/api/v1/plugins/source/builtin:file", 404, "plugin.unknown"),
        ("GET", "/api/v1/plugins/cook/x", 422, "request.invalid"),
    ],
)
async def test_every_error_has_the_same_shape(
    autojump_clock: MockClock, open_site: "OpenSite", method: str, path: str, status: int, code: str
) -> None:
    async with open_site("a") as site:
        answer = await site.client.request(method, path)

    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]
    assert set(answer.json()["error"]) <= {"code", "message", "path", "suggestion"}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"force": "yes"}', b'{"forse": true}'])
async def test_a_bad_body_is_422_and_stops_nothing(
    autojump_clock: MockClock, open_site: "OpenSite", body: bytes
) -> None:
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        answer = await site.client.post(
            "/api/v1/pipelines/a/stop", content=body, headers={"content-type": "application/json"}
        )
        assert site.service.fleet["a"].state.status == "running"

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request.invalid")


async def test_a_body_that_is_no_text_at_all_is_400(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        answer = await site.client.post(
            "/api/v1/pipelines/a/stop", content=b"\xff", headers={"content-type": "application/json"}
        )

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request.malformed")


async def test_an_unexpected_error_shows_an_id_and_leaves_the_rest_in_the_log(
    autojump_clock: MockClock, open_site: "OpenSite", caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("the secret of the house")

    async with open_site("a") as site:
        site.app.add_api_route("/api/v1/broken", broken, response_model=None)
        with caplog.at_level(logging.ERROR, "conduit_py.server"):
            answer = await site.client.get("/api/v1/broken")

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "internal")
    assert "secret" not in answer.text
    (logged,) = caplog.records
    assert logged.getMessage().split()[1] in error["message"]
    assert "ZeroDivisionError" in str(logged.exc_info)


@pytest.mark.parametrize("size", [BYTES_MAX + 1, 10 * BYTES_MAX])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_long_is_413_whether_or_not_it_says_so(
    autojump_clock: MockClock, open_site: "OpenSite", size: int, declared: bool
) -> None:
    async def chunks() -> object:
        for start in range(0, size, 1000):
            yield b"x" * min(1000, size - start)

    async with open_site("a") as site:
        content = b"x" * size if declared else chunks()
        answer = await site.client.post("/api/v1/pipelines/a/stop", content=content)  # type: ignore[arg-type]

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request.too_large")


async def test_a_body_that_never_arrives_is_408(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async def endless() -> object:
        yield b"{"
        await trio.sleep_forever()

    async with open_site("a") as site:
        answer = await site.client.post("/api/v1/pipelines/a/stop", content=endless())  # type: ignore[arg-type]

    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request.timed_out")


async def test_health_follows_the_store(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        well = await site.client.get("/healthz")
        await site.service.store.close()
        unwell = await site.client.get("/healthz")

    assert (well.status_code, well.json()) == (200, {"status": "ok", "reason": None})
    assert (unwell.status_code, unwell.json()["reason"]) == (503, "the state store failed: state.failed")


async def test_ready_is_between_boot_and_shutdown(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", "b") as site:
        starting = await site.client.get("/readyz")
        site.service.fleet.start("a")
        site.service.booted.set()
        await site.wait_until_settled()
        ready = await site.client.get("/readyz")
        site.service.closing.set()
        stopping = await site.client.get("/readyz")

    assert [(each.status_code, each.json()["status"]) for each in (starting, ready, stopping)] == [
        (503, "starting"),
        (200, "ready"),
        (503, "stopping"),
    ]
    assert (ready.json()["pipelines"]["running"], ready.json()["pipelines"]["created"]) == (1, 1)
    assert ready.json()["running"] == [{"id": "a", "progress_age_seconds": 0, "in_flight": 0, "blocked_on": None}]


async def test_a_pipeline_that_does_not_get_on_has_an_age(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a", destination={"script": {3: Block()}}) as site, trio.open_nursery() as nursery:
        nursery.start_soon(site.service.watch)
        site.service.fleet.start("a")
        await trio.sleep(61)
        (shown,) = (await site.client.get("/readyz")).json()["running"]
        nursery.cancel_scope.cancel()

    assert 59 < shown["progress_age_seconds"] <= 61
    assert shown["in_flight"] > 0


async def test_plugins_are_listed_and_show_the_schema_of_their_options(open_site: "OpenSite") -> None:
    async with open_site() as site:
        listed = (await site.client.get("/api/v1/plugins")).json()
        shown: list[httpx2.Response] = [
            await site.client.get(f"/api/v1/plugins/{each['kind']}/{each['name']}") for each in listed
        ]

    assert ("source", "file") in {(each["kind"], each["name"]) for each in listed}
    assert all(each["summary"] and each["available"] for each in listed)
    assert {answer.status_code for answer in shown} == {200}
    (file,) = [answer.json() for answer in shown if answer.url.path == "/api/v1/plugins/source/file"]
    assert file["options"]["properties"]["path"]


async def test_metrics_are_prometheus_text(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        answer = await site.client.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'pipeline_name="a"' in answer.text


async def test_the_document_describes_every_route_and_its_errors(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site() as site:
        document = (await site.client.get("/api/v1/openapi.json")).json()

    operations = [
        (path, method, answers)
        for path, methods in document["paths"].items()
        for method, answers in ((method, each["responses"]) for method, each in methods.items())
    ]
    assert len(operations) >= 24
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    # This server has no tokens, so none is needed.
    assert document["paths"]["/api/v1/pipelines"]["get"]["security"] == [{"token": []}, {}]
    assert "security" not in document["paths"]["/healthz"]["get"]
    for path, method, answers in operations:
        assert {"400", "401", "403", "413", "422", "500"} <= set(answers), (path, method)
        for status, answer in answers.items():
            if status.startswith("4"):
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")


async def test_a_method_that_is_not_allowed_is_answered_with_all_that_are(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site:
        answer = await site.client.post("/api/v1/pipelines/a/positions/source")

    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, PUT")


async def test_half_a_request_does_nothing(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    messages: list[dict[str, object]] = [
        {"type": "http.request", "body": b"", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def send(message: object) -> None:
        sent.append(message)

    async with open_site("a") as site:
        site.service.fleet.start("a")
        await site.wait_until_settled()
        path = "/api/v1/pipelines/a/stop"
        headers = [(b"host", b"localhost"), (b"content-length", b"2")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await site.app(scope, receive, send)
        assert site.service.fleet["a"].state.status == "running"

    assert sent == []


class CountScrapes(Collector):
    """A collector of a user, which is asked once for every text of the metrics."""

    asked = 0

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        self.asked += 1
        return []


async def test_clients_that_wait_for_the_metrics_together_get_one_text(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    counted = CountScrapes()
    REGISTRY.register(counted)
    try:
        async with open_site("a") as site, trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(site.client.get, "/metrics")
    finally:
        REGISTRY.unregister(counted)

    # One for the first client, one for all that asked while the first was made.
    assert 1 <= counted.asked <= 2


async def test_metrics_are_read_after_a_client_asked_for_them(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        before = (await site.client.get("/metrics")).text
        site.service.fleet.start("a")
        await site.wait_until_settled()
        after = (await site.client.get("/metrics")).text

    assert 'conduit_pipeline_status{pipeline_name="a",status="running"} 0' in before
    assert 'conduit_pipeline_status{pipeline_name="a",status="running"} 1' in after
