"""Webhooks on the server's own port, without a token; and what happens when it is killed, stopped and started again."""

import hashlib
import hmac
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conduit_server import Running, Server

SECRET = "the-secret-of-the-sender"
PIPELINE = f"""
from conduit_connectors import file, webhook
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "orders",
    sources=[Source("hook", webhook.Source(secret="{SECRET}", key_path="id", body_size_max=400_000))],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    delivery="exactly_once",
)
"""
CLIENT = httpx2.Client(timeout=60, verify=False)
"""One for all: making a client costs more than a hundred requests."""
TOKENS = "admin " + "a" * 40 + "\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.write("orders.py", PIPELINE)
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    yield made
    made.close()


def send(url: str, value: Any, path: str = "/hooks/orders/hook", secret: str = SECRET) -> httpx2.Response:
    body = json.dumps(value).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return CLIENT.post(url + path, content=body, headers={"X-Hub-Signature-256": f"sha256={signature}"})


def written(server: Server) -> list[int]:
    path = server.folder / "out.jsonl"
    return [json.loads(line)["id"] for line in path.read_text().splitlines()] if path.exists() else []


def send_until_taken(url: str, value: Any) -> httpx2.Response:
    """Send as senders do: again after 503, which a pipeline that is starting answers."""
    while (answer := send(url, value)).status_code == 503:
        assert answer.headers["retry-after"]
        time.sleep(0.05)
    return answer


def test_a_hook_needs_a_signature_and_no_token_and_everything_else_needs_one(server: Server) -> None:
    running = server.start("--token-file", "tokens")
    large = {"id": 1, "text": "x" * 300_000}

    assert send_until_taken(running.url, large).json() == {"accepted": 1, "repeated": 0}
    assert written(server) == [1]
    assert send(running.url, large).json() == {"accepted": 0, "repeated": 1}
    assert send(running.url, {"id": 2}, secret="wrong-secret").status_code == 401
    assert send(running.url, {"id": 2, "text": "x" * 500_000}).status_code == 413
    for path in ("/hooks/orders/out", "/hooks/orders/none", "/hooks/none/hook", "/hooks/orders", "/hooks/a/b/c"):
        assert (send(running.url, {"id": 2}, path).status_code, path) == (404, path)
    for path in ("/hooks", "/api/v1/pipelines/../hooks/orders", "/api/v1/pipelines/orders/stop"):
        assert (send(running.url, {"id": 2}, path).status_code, path) == (401, path)
    assert httpx2.get(f"{running.url}/hooks/orders/hook").status_code == 405
    assert written(server) == [1]


def test_a_stopped_pipeline_answers_503_and_takes_them_when_it_runs(server: Server) -> None:
    running = server.start()
    send_until_taken(running.url, {"id": 1})

    running.http.post("/api/v1/pipelines/orders/stop").raise_for_status()
    running.until("orders", lambda shown: shown["status"] == "stopped")
    answer = send(running.url, {"id": 2})
    running.http.post("/api/v1/pipelines/orders/start").raise_for_status()

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "hook.not_running")
    assert send_until_taken(running.url, {"id": 2}).json() == {"accepted": 1, "repeated": 0}
    assert written(server) == [1, 2]


class Sender(threading.Thread):
    """Sends numbered requests in order, each again until it is answered 200, wherever the server is now."""

    def __init__(self, numbers: range) -> None:
        super().__init__()
        self.numbers = numbers
        self.running: Running | None = None
        self.taken: list[int] = []
        self.unexpected: list[str] = []

    def run(self) -> None:
        for number in self.numbers:
            while not self._send(number):
                time.sleep(0.01)
            self.taken.append(number)

    def _send(self, number: int) -> bool:
        running = self.running
        if running is None:
            return False
        try:
            answer = send(running.url, {"id": number})
        except httpx2.HTTPError:
            return False
        if answer.status_code not in (200, 503):
            self.unexpected.append(answer.text)
        return answer.status_code == 200


def test_killed_again_and_again_what_was_answered_200_is_there_once(server: Server) -> None:
    senders = [Sender(range(start, start + 30)) for start in (0, 100, 200)]
    for sender in senders:
        sender.start()
    kills = 0
    while any(sender.is_alive() for sender in senders):
        running = server.start()
        before = [len(sender.taken) for sender in senders]
        for sender in senders:
            sender.running = running
        # Each life takes some requests, and then ends in the middle of others.
        while any(sender.is_alive() for sender in senders) and (
            kills >= 5 or sum(len(sender.taken) for sender in senders) < sum(before) + 12
        ):
            time.sleep(0.002)
        answered = [number for sender in senders for number in sender.taken]
        for sender in senders:
            sender.running = None
        kills += 1
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        # The file has it, or the next start makes it visible: the commit was durable.
        assert len(answered) == len(set(answered))
    for sender in senders:
        sender.join()
    last = server.start()
    last.until("orders", lambda shown: shown["status"] == "running")

    assert [sender.unexpected for sender in senders] == [[], [], []]
    assert sorted(written(server)) == [number for sender in senders for number in sender.numbers]
    assert kills > 4
