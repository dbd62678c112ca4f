"""The examples of the pages of `http` and `webhook` run as they are written there."""

import json
from pathlib import Path

import httpx2
import pytest
import trio
from connector_examples import load_example, run_until
from http_peer import HttpPeer, PagedApi, PeerAnswer, PeerRequest, free_port

import conduit_py


async def test_http(tmp_path: Path) -> None:
    sent: dict[str, int] = {}

    def keep(request: PeerRequest) -> PeerAnswer:
        sent[request.headers["idempotency-key"]] = json.loads(request.body)["id"]
        return PeerAnswer()

    with HttpPeer(PagedApi(9)).serving() as api, HttpPeer(keep).serving() as other:
        addresses = {"http://localhost:8000": api.url, "http://localhost:9000": other.url}
        [pipeline] = load_example("http", tmp_path, addresses)
        outcome = await conduit_py.run_async(pipeline, state=tmp_path / "state")

    assert outcome.error is None
    assert list(sent.values()) == list(range(9))


async def test_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    [pipeline] = load_example("webhook", tmp_path, {"127.0.0.1:8081": address})
    answers: list[httpx2.Response] = []

    async def send() -> None:
        async with httpx2.AsyncClient(timeout=60) as client:
            while len(answers) < 2:
                try:
                    answers.append(await client.post(f"http://{address}/", content=b'{"id": 7}'))
                except httpx2.TransportError:
                    await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await run_until(pipeline, lambda: len(answers) == 2, state=tmp_path / "state")

    assert [answer.json() for answer in answers] == [{"accepted": 1, "repeated": 0}, {"accepted": 0, "repeated": 1}]
    assert [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()] == [{"id": 7}]
