"""The HTTP destination: one request a record or several; keys, refusals, retries, and URLs that records cannot bend."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from builders import batch_of
from conduit_connectors import http
from http_peer import HttpPeer, PeerAnswer, PeerRequest

from conduit_py.sdk import Batch, FatalError, Record, TransientError, WriteGuarantee
from conduit_py.testing import destination_acceptance


class Store:
    """A server that keeps what it gets; with `by_key` it ignores a key that it has seen."""

    def __init__(self, *, by_key: bool = False) -> None:
        self.values: list[Any] = []
        self.keys: set[str] = set()
        self.by_key = by_key

    def __call__(self, request: PeerRequest) -> PeerAnswer:
        key = request.headers.get("idempotency-key", "")
        if self.by_key and key in self.keys:
            return PeerAnswer(status=200)
        self.keys.add(key)
        if request.headers["content-type"] == "application/x-ndjson":
            values = [json.loads(line) for line in request.body.splitlines()]
        else:
            values = json.loads(request.body)
        values = values if isinstance(values, list) else [values]
        if any(value.get("bad") for value in values):
            return PeerAnswer(b"bad one", status=422)
        self.values += values
        return PeerAnswer(status=201)


def connector_of(**options: Any) -> Callable[[], Iterator[Any]]:
    def made() -> Iterator[Any]:
        store = Store(by_key=bool(options.get("honours_key")))
        with HttpPeer(store).serving() as peer:
            yield http.Destination(url=f"{peer.url}/in", **options), lambda: list(store.values)

    return made


BAD = Record.of({"bad": True})
TestEachAcceptance = destination_acceptance(connector_of(honours_key=True), refused=BAD)
TestArrayAcceptance = destination_acceptance(connector_of(batch="array"), refused=BAD)


@pytest.fixture
def peer() -> Iterator[HttpPeer]:
    with HttpPeer(Store()).serving() as serving:
        yield serving


async def write(connector: http.Destination, batch: Batch) -> dict[int, str] | None:
    opened = connector.fresh()
    await opened.open()
    try:
        return await opened.write(batch)
    finally:
        await opened.teardown()


def values(peer: HttpPeer) -> list[Any]:
    assert isinstance(peer.respond, Store)
    return peer.respond.values


@pytest.mark.parametrize("batch", ["array", "lines"])
async def test_refused_records_are_found_among_those_of_a_request(batch: Any, peer: HttpPeer) -> None:
    records = [Record.of({"n": n, "bad": n in (2, 5)}) for n in range(7)] + [Record.of(b"raw"), Record.of(None)]

    refused = await write(http.Destination(url=peer.url, batch=batch, batch_records_max=4), batch_of(*records))

    assert refused is not None
    assert sorted(refused) == [2, 5, 7, 8]
    assert refused[2] == "the server answers 422 'bad one'"
    assert [value["n"] for value in values(peer)] == [0, 1, 3, 4, 6]


async def test_requests_have_at_most_so_many_records_and_bytes(peer: HttpPeer) -> None:
    batch = batch_of(*[Record.of({"n": n}) for n in range(10)])

    await write(http.Destination(url=peer.url, batch="array", batch_records_max=4), batch)
    await write(http.Destination(url=peer.url, batch="array", batch_bytes_max=16), batch)

    assert [len(json.loads(request.body)) for request in peer.requests] == [4, 4, 2, 2, 2, 2, 2, 2]


async def test_the_key_of_a_record_is_that_of_its_delivery(peer: HttpPeer) -> None:
    batch = batch_of(Record.of({"n": 1}), Record.of({"n": 2}))

    await write(http.Destination(url=peer.url), batch)
    await write(http.Destination(url=peer.url, idempotency_header="X-Key"), batch)

    sent = [request.headers.get("idempotency-key") or request.headers["x-key"] for request in peer.requests]
    assert sent == 2 * [batch.delivery_key(0).hex(), batch.delivery_key(1).hex()]


def test_the_guarantee_is_what_the_operator_says_of_the_server() -> None:
    url = "http://127.0.0.1/"
    assert http.Destination(url=url).guarantee is WriteGuarantee.AT_LEAST_ONCE
    assert http.Destination(url=url, honours_key=True).guarantee is WriteGuarantee.IDEMPOTENT
    (problem,) = http.Destination(url=url, honours_key=True, batch="array").problems
    assert 'needs batch="record"' in problem.message


async def test_busy_servers_are_tried_again_with_the_same_key(peer: HttpPeer) -> None:
    store, busy = Store(), [PeerAnswer(status=503, headers={"Retry-After": "0"}), PeerAnswer(raw=b"")]
    peer.respond = lambda request: busy.pop(0) if busy else store(request)

    await write(http.Destination(url=peer.url), batch_of(Record.of({"n": 1})))

    assert store.values == [{"n": 1}]
    assert len(peer.requests) == 3
    assert len({request.headers["idempotency-key"] for request in peer.requests}) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (PeerAnswer(status=500), TransientError, "answers 500"),
        (PeerAnswer(status=429), TransientError, "answers 429"),
        (PeerAnswer(status=401), FatalError, "answers 401"),
        (PeerAnswer(status=307, headers={"location": "http://else.example/"}), FatalError, "a redirect to"),
        (PeerAnswer(b"x" * 100), FatalError, "more than 50 bytes"),
    ],
)
async def test_what_is_no_refusal_stops_the_pipeline(
    answer: PeerAnswer, kind: type[Exception], message: str, peer: HttpPeer
) -> None:
    peer.respond = lambda request: answer

    with pytest.raises(kind, match=message):
        await write(http.Destination(url=peer.url, retries=0, response_size_max=50), batch_of(Record.of({"n": 1})))


async def test_records_fill_parts_of_the_url_and_change_nothing_else(peer: HttpPeer) -> None:
    peer.respond = lambda request: PeerAnswer()
    connector = http.Destination(
        url=f"{peer.url}/items/{{id}}?q={{q}}", url_parts={"id": ".Key.id", "q": ".Payload.After.q"}, method="PUT"
    )
    hostile = ["../../admin", "a/b?x=1#y", "@evil.example", "é\r\nHost: x", "%2e%2e", "\ud800"]
    refused = ["..", "", None, {"a": 1}, "x" * 5000]
    records = [Record.of({"q": "a&b=c"}, key={"id": each}) for each in [7, *hostile, *refused]]

    result = await write(connector, batch_of(*records))

    assert result is not None
    assert sorted(result) == list(range(7, 12))
    assert [request.path for request in peer.requests] == [
        "/items/7", "/items/..%2F..%2Fadmin", "/items/a%2Fb%3Fx%3D1%23y", "/items/%40evil.example",
        "/items/%C3%A9%0D%0AHost%3A%20x", "/items/%252e%252e", "/items/%3F",
    ]  # fmt: skip
    assert {request.params["q"] for request in peer.requests} == {"a&b=c"}


@pytest.mark.parametrize(
    ("url", "parts", "message"),
    [
        ("http://{host}/", {"host": ".Key"}, "in the path or the query"),
        ("http://h/{id}", {}, "only one of them has id"),
        ("http://h/", {"id": ".Key"}, "only one of them has id"),
        ("ftp://h/", {}, "begins with http"),
        ("http://me:secret@h/", {}, "without a user"),
    ],
)
def test_urls_that_cannot_be_are_problems(url: str, parts: dict[str, Any], message: str) -> None:
    (problem,) = http.Destination(url=url, url_parts=parts).problems

    assert message in problem.message


async def test_a_key_that_is_in_work_is_tried_again_where_keys_are_honoured(peer: HttpPeer) -> None:
    # The first request was cut; its repeat meets it while the server still works on it.
    answers = [PeerAnswer(raw=b""), PeerAnswer(b"in work", status=409), PeerAnswer(status=200)]
    peer.respond = lambda request: answers.pop(0)

    refused = await write(http.Destination(url=peer.url, honours_key=True), batch_of(Record.of({"n": 1})))

    assert (refused, answers) == (None, [])


async def test_a_conflict_that_stays_is_transient_where_keys_are_honoured_and_else_a_refusal(peer: HttpPeer) -> None:
    peer.respond = lambda request: PeerAnswer(b"in work", status=409)
    batch = batch_of(Record.of({"n": 1}))

    with pytest.raises(TransientError, match="answers 409"):
        await write(http.Destination(url=peer.url, honours_key=True, retries=1), batch)
    assert len(peer.requests) == 2
    assert await write(http.Destination(url=peer.url, retries=1), batch) == {0: "the server answers 409 'in work'"}


async def test_a_url_that_records_make_too_long_refuses_the_record(peer: HttpPeer) -> None:
    parts: dict[str, Any] = {name: f".Payload.After.{name}" for name in "abc"}
    connector = http.Destination(url=f"{peer.url}/{{a}}/{{b}}/{{c}}", url_parts=parts)

    refused = await write(connector, batch_of(Record.of(dict.fromkeys("abc", "\U0001f600" * 2000))))

    assert refused is not None
    assert "makes a URL that cannot be used" in refused[0]
    assert peer.requests == []
