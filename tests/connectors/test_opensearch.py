"""The OpenSearch destination on a real node: ids, versions, refusals, and a node that is killed meanwhile."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from broker_kills import COUNT, write_through_a_kill, writing_to
from broker_servers import OpenSearchServer
from conduit_connectors import opensearch
from connector_examples import load_example
from direct_writes import write_records
from http_peer import HttpPeer, PeerAnswer, PeerRequest

import conduit_py
from conduit_py.record import Operation, Payload, Record
from conduit_py.sdk import FatalError, TransientError, WriteGuarantee
from conduit_py.testing import destination_acceptance
from conduit_py.testing.connector_driver import batch_of


class Index:
    """An index, and what is in it."""

    def __init__(self, server: OpenSearchServer, name: str) -> None:
        self.url, self.name = server.url, name

    def create(self, **mappings: Any) -> None:
        settings = {"index.number_of_shards": 1, "index.number_of_replicas": 0}
        body = {"settings": settings, "mappings": mappings}
        httpx2.put(f"{self.url}/{self.name}", json=body, timeout=300).raise_for_status()

    def empty(self) -> None:
        deletes = [json.dumps({"delete": {"_id": id}}) + "\n" for id, _ in self.documents()]
        if deletes:
            headers = {"content-type": "application/x-ndjson"}
            url = f"{self.url}/{self.name}/_bulk?refresh=true"
            httpx2.post(url, content="".join(deletes), headers=headers, timeout=300).raise_for_status()

    def make(self, **options: Any) -> opensearch.Destination:
        return opensearch.Destination(url=self.url, index=self.name, **options)

    def documents(self) -> list[tuple[str, dict[str, Any]]]:
        """The ids and documents in the order in which they were written last."""
        httpx2.post(f"{self.url}/{self.name}/_refresh", timeout=300)
        query = {"size": 1000, "sort": ["_seq_no"]}
        found = httpx2.post(f"{self.url}/{self.name}/_search", json=query, timeout=300)
        if found.status_code == 404:
            return []
        return [(each["_id"], each["_source"]) for each in found.raise_for_status().json()["hits"]["hits"]]


@pytest.fixture(scope="module")
def shared_index(opensearch: OpenSearchServer) -> Index:
    made = Index(opensearch, "shared")
    made.create()
    return made


@pytest.fixture
def index(shared_index: Index) -> Index:
    """An empty index. To make a new one takes a second of CPU."""
    shared_index.empty()
    return shared_index


def index_to_fill(index: Index) -> tuple[opensearch.Destination, Callable[[], list[Any]]]:
    return index.make(), lambda: [document for _, document in index.documents()]


TestDestination = destination_acceptance(index_to_fill, refused=Record(payload=Payload(after=b"raw")))


def record(number: int, key: Any, after: Any, operation: Operation = Operation.UPDATE, before: Any = None) -> Record:
    return Record(b"%d" % number, operation, key=key, payload=Payload(before=before, after=after))


def test_each_record_is_a_document_under_its_delivery_key(index: Index) -> None:
    records = [Record(b"%d" % number, payload=Payload(after={"n": number})) for number in range(25)]
    destination = index.make(batch_records_max=10)
    # The second time all of them are there.
    assert [write_records(destination, *records), write_records(destination, *records)] == [{}, {}]

    batch = batch_of(records)
    assert index.documents() == [(batch.delivery_key(number).hex(), {"n": number}) for number in range(25)]


def test_the_last_record_of_a_key_is_its_document_and_older_versions_are_passed_over(index: Index) -> None:
    changes = [
        record(1, {"id": 7}, {"v": 1}),
        record(2, {"id": 7}, {"v": 3}),
        record(3, {"b": 2, "a": 1}, {"v": 1}),
        record(4, b"text", {"v": 5}),
        record(5, b"text", None, Operation.DELETE, {"v": 6}),
        record(6, b"never", None, Operation.DELETE, {"v": 1}),
        record(7, {"id": 7}, {"v": 2}),
    ]
    versioned = index.make(id="key", version_field="v")
    assert [write_records(versioned, *changes), write_records(versioned, *changes)] == [{}, {}]
    assert sorted(index.documents()) == [("7", {"v": 3}), ('{"a":1,"b":2}', {"v": 1})]

    assert write_records(index.make(id="key"), changes[6]) == {}
    assert dict(index.documents())["7"] == {"v": 2}


def test_what_the_index_cannot_hold_is_refused_alone(opensearch: OpenSearchServer, queue_name: str) -> None:
    index = Index(opensearch, f"{queue_name}-typed")
    index.create(dynamic="strict", properties={"n": {"type": "integer"}})
    payloads: list[dict[str, Any]] = [{"n": 1}, {"n": "no number\x1b[0m"}, {"other": 1}, {"n": 2}]
    records = [Record(b"%d" % number, payload=Payload(after=each)) for number, each in enumerate(payloads)]
    refused = write_records(index.make(), *records, record(9, b"k", None, Operation.DELETE))

    assert [document for _, document in index.documents()] == [{"n": 1}, {"n": 2}]
    assert sorted(refused) == [1, 2, 4]
    assert refused[1].startswith("OpenSearch refuses it: 400 mapper_parsing_exception: ")
    assert "\x1b" not in refused[1]
    assert refused[2].startswith("OpenSearch refuses it: 400 strict_dynamic_mapping_exception: ")
    assert refused[4] == 'is a delete, which needs id="key"'


@pytest.mark.parametrize(
    ("key", "after", "why"),
    [
        (None, {"v": 1}, "has no key"),
        (b"\xff", {"v": 1}, "is no text"),
        ({"id": "\ud800"}, {"v": 1}, "is no text"),
        (b"x" * 513, {"v": 1}, "has a key of 513 bytes"),
        (b"k", {"v": True}, "has no version in the field 'v'"),
        (b"k", {"v": 2**63}, "has no version"),
    ],
)
def test_keys_and_versions_that_cannot_be_any_refuse_their_record(key: Any, after: Any, why: str) -> None:
    destination = opensearch.Destination(url="http://127.0.0.1:1", index="i", id="key", version_field="v")
    [refused] = write_records(destination, record(1, key, after)).values()

    assert why in refused


def test_busy_servers_are_asked_again_and_whole_refusals_are_divided() -> None:
    """What a real node does under load only: documents answered with 429, and requests that are too large."""
    busy = iter([True, False])

    def respond(request: PeerRequest) -> PeerAnswer:
        lines = request.body.splitlines()
        if len(lines) > 4:
            return PeerAnswer({"error": "too large"}, 413)
        status = 429 if next(busy, False) else 201
        items = [{"create": {"status": 201}}] * (len(lines) // 2 - 1) + [{"create": {"status": status}}]
        return PeerAnswer({"errors": status == 429, "items": items})

    with HttpPeer(respond).serving() as peer:
        destination = opensearch.Destination(url=peer.url, index="i")
        records = [Record(b"%d" % number, payload=Payload(after={"n": number})) for number in range(4)]
        assert write_records(destination, *records) == {}
        sent = [len(request.body.splitlines()) // 2 for request in peer.requests]
    # All, the first half which is busy, the same again, the second half.
    assert sent == [4, 2, 2, 2]


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (PeerAnswer(b"", 401), FatalError, "answers 401"),
        (PeerAnswer(b"", 503), TransientError, "answers 503"),
        (PeerAnswer(b"<html>"), FatalError, "does not answer as OpenSearch does"),
        (
            PeerAnswer({"items": [{"create": {"status": 404, "error": {"type": "index_not_found_exception"}}}]}),
            FatalError,
            "takes no documents",
        ),
    ],
)
def test_what_is_wrong_is_said_and_whether_waiting_helps(answer: PeerAnswer, error: type[Exception], why: str) -> None:
    with HttpPeer(lambda _: answer).serving() as peer:
        destination = opensearch.Destination(url=peer.url, index="i", retries=0)
        with pytest.raises(error, match=why):
            write_records(destination, Record(payload=Payload(after={"n": 1})))


def test_the_guarantee_depends_on_the_id() -> None:
    def make(**options: Any) -> opensearch.Destination:
        return opensearch.Destination(url="http://h", index="i", **options)

    assert make().guarantee is WriteGuarantee.IDEMPOTENT
    assert make(id="key").guarantee is WriteGuarantee.AT_LEAST_ONCE
    assert make(id="key", version_field="v").guarantee is WriteGuarantee.IDEMPOTENT
    assert make(version_field="v").problems
    for wrong in ("Upper", "_hidden", "a/../b", "a,b", "*", "a b"):
        assert opensearch.Destination(url="http://h", index=wrong).problems


async def test_probe_and_example(index: Index, tmp_path: Path) -> None:
    assert await index.make().probe() == "the index has 0 documents"
    missing = opensearch.Destination(url=index.url, index=f"{index.name}-2")
    assert await missing.probe() == f"there is no index {index.name}-2 yet; the server may create it"
    [pipeline] = load_example(
        "opensearch",
        tmp_path,
        {'"http://localhost:9200"': "url", 'index="orders"': "index=where"},
        url=index.url,
        where=index.name,
    )
    outcome = await conduit_py.run_async(pipeline, state=tmp_path / "state")

    assert outcome.error is None
    assert sorted(document["id"] for _, document in index.documents()) == list(range(100))


@pytest.mark.slow
async def test_killed_while_it_is_written_to(opensearch: OpenSearchServer, index: Index, tmp_path: Path) -> None:
    def stored() -> list[int]:
        return [document["n"] for _, document in index.documents()]

    pipeline = writing_to(index.make(retries=1), "exactly_once")
    written = await write_through_a_kill(opensearch, pipeline, stored, tmp_path)

    assert written == list(range(COUNT)), json.dumps(written)
