"""Processes that poll an API or send to one, and are killed, among 429s and lost connections: each record once."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from http_peer import HttpPeer, PagedApi, PeerAnswer, PeerRequest
from warm_python import WarmCommand

RECORDS = 120
KILLS = 8
PIPELINE = """
from conduit_connectors import file, http
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "poll",
    sources=[Source("api", http.Source(
        url="{url}/{kind}", records="data.items", since_param="since", since_path="updated", {paging}
    ))],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
    delivery="exactly_once",
)
"""


class KillingApi(PagedApi):
    """Kills its client before or right after some of its answers, and is busy in between."""

    def __init__(self, seed: int) -> None:
        super().__init__(RECORDS, size=5)
        self.rng = random.Random(seed)
        self.client: subprocess.Popen[str] | None = None
        self.kills = self.requests = 0
        self.disturb = self._disturb

    def _disturb(self, request: PeerRequest) -> PeerAnswer | None:
        chance = self.rng.random()
        self.requests += 1
        # By count, not by chance: how many requests there are depends on what was durable at each kill.
        if self.requests % 2 == 0 and self.kills < KILLS and self.client is not None:
            self.kills += 1
            os.kill(self.client.pid, signal.SIGKILL)
            self.client = None
        if 0.25 <= chance < 0.35:
            return PeerAnswer(status=429, headers={"Retry-After": "0"})
        return PeerAnswer(raw=b"") if 0.35 <= chance < 0.4 else None


@pytest.mark.parametrize(
    ("kind", "paging"), [("cursor", "paging='cursor', cursor_path='next'"), ("link", "paging='link'")]
)
def test_killed_again_and_again_each_record_is_there_once(kind: str, paging: str, tmp_path: Path) -> None:
    api = KillingApi(seed=len(kind))
    with HttpPeer(api).serving() as peer:
        (tmp_path / "poll.py").write_text(PIPELINE.format(url=peer.url, kind=kind, paging=paging))
        while True:
            with WarmCommand("run", "poll.py", "--state", "state", cwd=tmp_path, stderr=subprocess.PIPE) as process:
                api.client = process
                error = process.communicate(timeout=300)[1]
            if process.returncode != -signal.SIGKILL:
                break
        assert process.returncode == 0, error

    assert api.kills == KILLS
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["id"] for each in written] == list(range(RECORDS))


SENDING = """
from conduit_connectors import generator, http
from conduit_py import Destination, Pipeline, Source

pipeline = Pipeline(
    "send",
    sources=[Source("made", generator.Source(count={count}, fields={{"n": "int"}}), batch_size=7)],
    destinations=[Destination("out", http.Destination(url="{url}", honours_key=True))],
    delivery="exactly_once",
)
"""


class KillingStore:
    """Keeps what it gets, ignores a key that it has seen, and kills its client before and after that."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.kept: dict[str, bytes] = {}
        self.repeated = 0
        self.client: subprocess.Popen[str] | None = None
        self.kills = 0

    def __call__(self, request: PeerRequest) -> PeerAnswer:
        chance = self.rng.random()
        kills = chance < 0.1 and self.kills < KILLS and self.client is not None
        if kills and chance < 0.03:
            self._kill()
            return PeerAnswer(raw=b"")
        key = request.headers["idempotency-key"]
        self.repeated += key in self.kept
        self.kept.setdefault(key, request.body)
        if kills:
            self._kill()
        return PeerAnswer(status=429 if 0.1 <= chance < 0.15 else 200, headers={"Retry-After": "0"})

    def _kill(self) -> None:
        assert self.client is not None
        self.kills += 1
        os.kill(self.client.pid, signal.SIGKILL)
        self.client = None


def test_a_server_that_honours_keys_gets_each_record_once_from_a_process_that_is_killed(tmp_path: Path) -> None:
    store = KillingStore()
    with HttpPeer(store).serving() as peer:
        (tmp_path / "send.py").write_text(SENDING.format(url=peer.url, count=RECORDS))
        while True:
            with WarmCommand("run", "send.py", "--state", "state", cwd=tmp_path, stderr=subprocess.PIPE) as process:
                store.client = process
                error = process.communicate(timeout=300)[1]
            if process.returncode != -signal.SIGKILL:
                break
        assert process.returncode == 0, error

    assert store.kills > 3
    assert store.repeated > 0
    assert len(store.kept) == RECORDS
