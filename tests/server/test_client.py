"""The Python client: every request against the OpenAPI document, and both clients against a real server."""

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import httpx2
import pytest
import trio
from pydantic import TypeAdapter

from conduit_py.client import Api, ApiCall, AsyncClient, Client, ServerRefused, ServerUnreachable, Stream
from conduit_py.errors import ConduitError

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Server

PIPELINE = """
from conduit_connectors import generator, log
from conduit_py import DeadLetters, Pipeline, Record

def odd(record: Record) -> Record:
    if record.payload["n"] % 2 == 0:
        raise ValueError("an even number")
    return record

pipeline = Pipeline(
    "numbers",
    sources={"in": generator.Source(rate=50, fields={"n": "index"})},
    processors=[odd],
    destinations={"out": log.Destination(level="debug")},
    dead_letters=DeadLetters.keep(),
)
"""

CALLS = {name: each for name, each in vars(Api).items() if isinstance(each, staticmethod)}
ARGUMENTS: dict[str, Any] = {
    "since": datetime(2026, 1, 1, tzinfo=UTC), "position": b"1", "record": {}, "which": ["letter"], "kind": "source",
    "keep_state": True, "force": True, "dry_run": True, "limit": 3, "rate": 4, "cursor": 5, "destinations": ["out"],
}  # fmt: skip
OTHERS = {("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics")}
"""For probes and Prometheus, not for the client."""


def made(name: str) -> tuple[ApiCall[Any] | Stream[Any], dict[str, str]]:
    """A request with every argument, and the values of those that are texts."""
    function = CALLS[name].__func__
    texts = {each: f"<{each}>" for each in inspect.signature(function).parameters if each not in ARGUMENTS}
    given = {each: texts.get(each, ARGUMENTS.get(each)) for each in inspect.signature(function).parameters}
    if name in ("dead_letters", "causes"):
        given["which"] = {"pipeline": "p", "when": "true"}
    request = function(**given)
    assert isinstance(request, ApiCall | Stream)
    return request, texts


_documents: list[dict[str, Any]] = []


@pytest.fixture
async def document(open_site: "OpenSite") -> dict[str, Any]:
    # Made once: it depends on nothing but the code, and takes longer than any test that looks at it.
    if not _documents:
        async with open_site() as site:
            _documents.append(site.app.openapi())
    return _documents[0]


def operation_of(request: ApiCall[Any] | Stream[Any], document: dict[str, Any]) -> tuple[str, str]:
    """The method and the path of the document that answer a request."""
    path = "/api/v1/" + "/".join(request.path)
    method = request.method.lower() if isinstance(request, ApiCall) else "get"
    fit = [
        each
        for each in document["paths"]
        if method in document["paths"][each] and re.fullmatch(re.sub(r"{\w+}", "[^/]+", each), path)
    ]
    # /dead-letters/causes fits the path of a letter too; the one without a parameter is meant.
    return method, min(fit, key=lambda each: each.count("{"))


async def test_every_operation_of_the_document_has_its_request(document: dict[str, Any]) -> None:
    documented = {(method, path) for path, methods in document["paths"].items() for method in methods}

    assert {operation_of(made(name)[0], document) for name in CALLS} == documented - OTHERS


@pytest.mark.parametrize("name", CALLS)
async def test_a_request_is_as_the_document_wants_it(name: str, document: dict[str, Any]) -> None:
    request, _ = made(name)
    method, path = operation_of(request, document)
    operation = document["paths"][path][method]
    queries = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")

    assert set(request.query or {}) <= queries
    assert (request.body is not None) == (body is not None) if isinstance(request, ApiCall) else body is None
    if isinstance(request, ApiCall) and body is not None:
        assert any(set(request.body or {}) <= fields for fields in fields_of(body, document))


def fields_of(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[set[str]]:
    """The fields of each form that a body may have."""
    for each in schema.get("anyOf", [schema]):
        if "$ref" in each:
            yield set(document["components"]["schemas"][each["$ref"].rpartition("/")[2]]["properties"])


@pytest.mark.parametrize("name", [name for name in CALLS if isinstance(made(name)[0], ApiCall)])
async def test_the_type_of_an_answer_is_that_of_the_document(name: str, document: dict[str, Any]) -> None:
    request, _ = made(name)
    assert isinstance(request, ApiCall)
    method, path = operation_of(request, document)
    answers = [each for code, each in document["paths"][path][method]["responses"].items() if code.startswith("2")]
    [schema] = [each["content"]["application/json"]["schema"] for each in answers]
    ours = TypeAdapter(request.answer).json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
    definitions = ours.pop("$defs", {})

    assert get_args(get_type_hints(CALLS[name].__func__)["return"])[0] == request.answer
    if "$ref" in schema:
        assert ours == document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    else:
        assert ours["items"] == schema["items"]
    assert definitions == {each: document["components"]["schemas"][each] for each in definitions}


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def operate(client: Client) -> None:
    """What the page of documentation shows, and more."""
    assert client.ask(Api.access()).role == "admin"
    assert [each.id for each in client.ask(Api.pipelines()).pipelines] == ["numbers"]
    until(lambda: client.ask(Api.dead_letters({"pipeline": "numbers"})).total >= 3)
    shown = client.ask(Api.pipeline("numbers"))
    assert (shown.delivery, [node.kind for node in shown.nodes][:1]) == ("at_least_once", ["source"])
    assert client.ask(Api.causes()).causes[0].node == "odd"
    with closing(client.follow(Api.tap("numbers", "odd", limit=2))) as records:
        assert [type(each).__name__ for each in records][:1] == ["RecordEvent"]
    with closing(client.follow(Api.watch("numbers"))) as events:
        assert {type(next(events)).__name__ for _ in range(2)} == {"PipelineEvent", "FleetEvent"}
    assert client.ask(Api.stop("numbers")).id == "numbers"
    until(lambda: client.ask(Api.pipeline("numbers")).status == "stopped")
    page = client.ask(Api.dead_letters(limit=1))
    letter = client.ask(Api.dead_letter(page.letters[0].id))
    edited = client.ask(Api.edit_dead_letter(letter.id, {"payload": {"after": {"n": 1}}}))
    assert edited.record["payload"]["after"] == {"n": 1}
    assert client.ask(Api.replay_dead_letters([letter.id], dry_run=True)).queued == 1
    assert client.ask(Api.discard_dead_letters({"pipeline": "numbers"}, dry_run=True)).discarded == page.total
    assert client.ask(Api.replay("numbers", "in", None)).positions == {"in": None}
    assert client.ask(Api.reload()).steps == {}
    assert client.ask(Api.plugin("source", "file")).available
    assert "file" in {each.name for each in client.ask(Api.plugins())}


async def operate_async(client: AsyncClient) -> None:
    async with client:
        assert [each.id for each in (await client.ask(Api.pipelines())).pipelines] == ["numbers"]
        async with aclosing(client.follow(Api.watch())) as events:
            assert type(await anext(events)).__name__ == "FleetEvent"
        with pytest.raises(ServerRefused) as refused:
            await client.ask(Api.pipeline("nobody"))
        with pytest.raises(ServerRefused) as no_stream:
            async with aclosing(client.follow(Api.tap("nobody", "x"))) as taps:
                await anext(taps)
    assert refused.value.wire_error.code == no_stream.value.wire_error.code == "pipeline.unknown"


def test_both_clients_operate_a_real_server(server: "Server") -> None:
    server.write("numbers.py", PIPELINE)
    running = server.start()
    with Client(running.url) as client:
        operate(client)
        with pytest.raises(ServerRefused, match="nobody") as refused:
            client.ask(Api.start("nobody"))
    trio.run(operate_async, AsyncClient(running.url))
    asyncio.run(operate_async(AsyncClient(running.url)))

    assert refused.value.suggestion == "pipelines are numbers"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx2.Response(200, text="<html>"), "is not a conduit-py server (HTTP status 200)"),
        (httpx2.Response(200, json={"pipelines": 3}), "answers otherwise than this version expects"),
        (httpx2.Response(502, json={"oops": 1}), "is not a conduit-py server (HTTP status 502)"),
        (httpx2.ReadTimeout("slow"), "does not answer"),
        (httpx2.ConnectError("refused"), "cannot reach a server at http://localhost: refused"),
    ],
)
def test_what_is_no_answer_is_an_error_with_what_to_do(answer: httpx2.Response | Exception, message: str) -> None:
    def give(_: httpx2.Request) -> httpx2.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Client("http://localhost/", transport=httpx2.MockTransport(give)) as client:
        with pytest.raises(ServerUnreachable) as raised:
            client.ask(Api.pipelines())
        with pytest.raises(ConduitError):
            next(client.follow(Api.watch()))

    assert message in raised.value.message
    assert raised.value.suggestion


def test_a_token_is_sent_and_an_id_stays_one_part_of_the_path() -> None:
    seen = []

    def give(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.headers["authorization"], request.url.raw_path))
        return httpx2.Response(200, json={"id": "x", "status": "running"})

    with Client("http://localhost", token="secret-one", transport=httpx2.MockTransport(give)) as client:
        client.ask(Api.start("../a"))

    assert seen == [("Bearer secret-one", b"/api/v1/pipelines/%2E%2E%2Fa/start")]
