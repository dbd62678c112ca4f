"""`webhook.http`: Conduit's settings and examples, retries, and URLs that records cannot lead elsewhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_processors.webhook import Http, RequestFailed
from http_peer import HttpPeer, PeerAnswer, PeerRequest
from warm_python import run_command

from conduit_py.sdk import Record, RecordRefused


def greet(request: PeerRequest) -> PeerAnswer:
    name = request.body.decode() if request.path == "/" else request.path.strip("/") + "!"
    return PeerAnswer(f"hello, {name}".encode())


@pytest.fixture
def peer() -> Iterator[HttpPeer]:
    with HttpPeer(greet).serving() as serving:
        yield serving


async def process(processor: Http, *records: Record) -> list[Record]:
    fresh = processor.fresh()
    fresh.open()
    try:
        return [await fresh.process(record) for record in records]
    finally:
        await fresh.close()


async def test_the_answer_becomes_a_part_of_the_record(peer: HttpPeer) -> None:
    whole = Http(url=peer.url, body='{{ printf "%s" .Payload.After }}', response_status='.Metadata["http_status"]')
    part = Http(url=f"{peer.url}/{{{{.Payload.After.name}}}}", response_body=".Payload.After.response")

    (first,) = await process(whole, Record.of(b"world"))
    (second,) = await process(part, Record.of({"name": "foo"}))

    assert (first.payload.after, first.metadata) == (b"hello, world", {"http_status": "200"})
    assert second.payload.after == {"name": "foo", "response": b"hello, foo!"}
    assert [(each.method, each.headers["content-type"]) for each in peer.requests] == [("GET", "application/json")] * 2


YAML = """
version: 2.2
pipelines:
  - id: greet
    status: running
    connectors:
      - id: in
        type: source
        plugin: builtin:file
        settings: {path: in.txt, tail: "false"}
      - id: out
        type: destination
        plugin: builtin:file
        settings: {path: out.jsonl}
    processors:
      - id: hook
        plugin: webhook.http
        settings:
          request.url: "URL/{{ printf \\"%s\\" .Payload.After }}?a=1"
          request.method: POST
          request.body: "{{ toJson .Metadata }}"
          headers.Authorization: "Bearer key"
          headers.X-Trace: "7"
          backoffRetry.count: "3"
          backoffRetry.factor: "1"
          backoffRetry.min: 1ms
          backoffRetry.max: 5ms
          response.body: .Payload.After
          response.status: .Metadata.status
"""


def test_yaml_of_conduit_works_as_it_is(peer: HttpPeer, tmp_path: Path) -> None:
    busy = [PeerAnswer(status=500), PeerAnswer(raw=b"")]
    peer.respond = lambda request: busy.pop() if busy else PeerAnswer(b"not there", status=404)
    (tmp_path / "greet.yaml").write_text(YAML.replace("URL", peer.url))
    (tmp_path / "in.txt").write_text("one\n")

    done = run_command("run", "greet.yaml", "--state", "state", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    record = Record.from_json((tmp_path / "out.jsonl").read_text())
    assert (record.payload.after, record.metadata["status"]) == (b"not there", "404")
    assert len(peer.requests) == 3
    last = peer.requests[-1]
    assert (last.method, last.path, last.params) == ("POST", "/one", {"a": "1"})
    assert (last.headers["authorization"], last.headers["x-trace"]) == ("Bearer key", "7")
    assert isinstance(json.loads(last.body), dict)


async def test_a_request_that_fails_refuses_its_record_after_the_retries(peer: HttpPeer) -> None:
    peer.respond = lambda request: PeerAnswer(b"ill", status=503)
    started = trio.current_time()

    with pytest.raises(RequestFailed, match="answers 503 'ill'"):
        await process(Http(url=peer.url, retry_count=2, retry_min_seconds=0.05, retry_factor=2), Record.of({}))

    assert len(peer.requests) == 3
    assert trio.current_time() - started >= 0.15


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"p": "../admin"}, "dots that lead elsewhere"),
        ({"p": "%2e%2E/admin"}, "dots that lead elsewhere"),
        ({"p": ".."}, "dots that lead elsewhere"),
        ({"p": "a\r\nX: 1"}, "makes no URL"),
        ({}, "has no field"),
    ],
)
async def test_records_cannot_leave_the_place_of_the_url(after: dict[str, Any], reason: str, peer: HttpPeer) -> None:
    with pytest.raises(RecordRefused) as refused:
        await process(Http(url=f"{peer.url}/items/{{{{.Payload.After.p}}}}"), Record.of(after))

    assert peer.requests == []
    assert reason in refused.value.message


async def test_what_a_record_fills_in_stays_behind_the_host(peer: HttpPeer) -> None:
    records = [Record.of({"p": each}) for each in ("@evil.example/", "//evil.example/", "a b", "?x#y")]

    await process(Http(url=f"{peer.url}/{{{{.Payload.After.p}}}}"), *records)

    assert len(peer.requests) == 4
    assert {request.headers["host"] for request in peer.requests} == {f"127.0.0.1:{peer.port}"}


async def test_hosts_of_records_have_public_addresses_or_are_allowed(peer: HttpPeer) -> None:
    url, there = "{{.Payload.After.url}}", Record.of({"url": f"http://localhost:{peer.port}/x"})

    with pytest.raises(RecordRefused, match="not public"):
        await process(Http(url=url), there.copy())
    with pytest.raises(RecordRefused, match="not in allow_hosts"):
        await process(Http(url=url, allow_hosts=["other.example"]), there.copy())
    with pytest.raises(RecordRefused, match="with http or https"):
        await process(Http(url=url), Record.of({"url": "file:///etc/passwd"}))
    assert peer.requests == []
    (record,) = await process(Http(url=url, allow_hosts=["localhost"]), there)

    assert record.payload.after == b"hello, x!"


async def test_redirects_stay_at_the_origin(peer: HttpPeer) -> None:
    peer.respond = lambda request: (
        greet(request)
        if request.path == "/there"
        else PeerAnswer(status=302, headers={"location": "/there" if request.path == "/a" else "http://127.0.0.1:1/"})
    )

    (followed,) = await process(Http(url=f"{peer.url}/a", method="POST", body="x"), Record.of({}))
    with pytest.raises(RecordRefused, match="is not the origin"):
        await process(Http(url=f"{peer.url}/b"), Record.of({}))

    assert followed.payload.after == b"hello, there!"
    assert [request.method for request in peer.requests] == ["POST", "GET", "GET"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "{{ .Key }}", "headers": {"A": "b"}}, "would send `headers` to any of them"),
        ({"url": "http://h", "response_status": ".Payload.After"}, "the same field"),
        ({"url": "no url"}, "must be a URL"),
        ({"url": "http://h", "headers": {"A": "b\r\nC: d"}}, "printable ASCII"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    (problem,) = Http(**options).problems

    assert message in problem.message
