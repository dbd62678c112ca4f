"""`serve --watch` as a real process: files are edited while records flow, and the output has each record once."""

import json
import signal
import subprocess
from typing import TYPE_CHECKING

from warm_python import run_command

if TYPE_CHECKING:
    from tests.server.conftest import Running, Server

FLOWING = """
import helper
from conduit_connectors import file, generator
from conduit_py import Destination, Pipeline, Processor, Source

def mark(record):
    record.payload["mark"] = {mark!r}
    return record

def word(record):
    record.payload["word"] = helper.WORD
    return record

flowing = Pipeline(
    "flowing",
    sources=[Source("made", generator.Source(rate={rate}, fields={{"id": "index"}}), batch_size=50)],
    processors=[Processor("mark", mark, workers={workers}), word],
    destinations=[Destination("kept", file.Destination(path="flowing.jsonl"))],
)
"""


def flowing(mark: int, *, rate: int = 2000, workers: int = 1) -> str:
    return FLOWING.format(mark=mark, rate=rate, workers=workers)


def rows(server: "Server") -> list[dict[str, int]]:
    lines = (server.folder / "flowing.jsonl").read_text().splitlines()
    return [json.loads(line)["payload"]["after"] for line in lines]


def until_row(server: "Server", running: "Running", **fields: object) -> None:
    """Wait until the newest record has these fields."""

    def last(_: object) -> bool:
        path = server.folder / "flowing.jsonl"
        # It is there with the first record, not with the pipeline.
        text = path.read_bytes() if path.exists() else b""
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        return bool(lines) and json.loads(lines[-1])["payload"]["after"].items() >= fields.items()

    running.until("flowing", last)


def ask(server: "Server", running: "Running", *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_command(*arguments, "--url", running.url, cwd=server.folder)


def test_edits_while_records_flow_lose_and_double_nothing(server: "Server") -> None:
    server.write("helper.py", 'WORD = "first"\n')
    server.write("flowing.py", flowing(0))
    running = server.start("--watch")
    until_row(server, running, mark=0, word="first")
    since = running.pipeline("flowing")["since"]
    for mark in range(1, 4):
        server.write("flowing.py", flowing(mark, workers=mark))
        until_row(server, running, mark=mark)
    server.write("helper.py", 'WORD = "second"\n')
    until_row(server, running, mark=3, word="second")
    assert running.pipeline("flowing")["since"] == since

    server.write("flowing.py", flowing(4).replace("rate=2000", "rat=2000"))
    wrong = running.until("flowing", lambda shown: shown["definition"])
    assert wrong["status"] == "running"
    assert wrong["definition"]["path"] == "sources.made.rat"
    assert wrong["definition"]["suggestion"] == "did you mean 'rate'?"
    assert wrong["definition"]["file"].endswith("flowing.py")
    assert wrong["definition"]["line"] == 16
    described = ask(server, running, "pipelines", "describe", "flowing").stdout
    assert "its newest definition is not in effect: " in described
    assert "flowing.py:16: sources.made.rat: there is no such option (did you mean 'rate'?)" in described
    server.write("flowing.py", flowing(5))
    running.until("flowing", lambda shown: shown["definition"] is None)
    until_row(server, running, mark=5)
    assert running.pipeline("flowing")["since"] == since

    server.write("flowing.py", flowing(6, rate=3000))
    until_row(server, running, mark=6)
    assert running.pipeline("flowing")["since"] != since
    running.signal(signal.SIGTERM)
    assert running.wait() == 0

    written = rows(server)
    assert [row["id"] for row in written] == list(range(len(written)))
    assert [row["mark"] for row in written] == sorted(row["mark"] for row in written)
    assert {row["mark"] for row in written} == {0, 1, 2, 3, 5, 6}


def test_files_that_come_and_go_and_a_reload_by_hand(server: "Server") -> None:
    server.write("helper.py", 'WORD = "first"\n')
    server.write("flowing.py", flowing(0))
    running = server.start()
    until_row(server, running, mark=0)
    assert ask(server, running, "pipelines", "reload").stdout == "nothing has changed\n"
    server.write("other.py", flowing(0).replace("flowing", "other"))
    server.write("bad.yaml", "version: 2.2\npipelines:\n  - id: bad\n    procesors: []\n")
    added = ask(server, running, "pipelines", "reload")
    assert added.returncode == 1
    assert added.stdout == "other: is new, and started\n"
    assert "bad.yaml:3: pipelines.bad.connectors: a pipeline needs at least one source" in added.stderr
    running.until("other", lambda shown: shown["progress"] and shown["progress"]["acked"])
    (server.pipelines / "flowing.py").unlink()
    (server.pipelines / "bad.yaml").unlink()
    answer = running.http.post("/api/v1/reload")
    assert (answer.status_code, answer.json()) == (202, {"steps": {"flowing": "remove"}, "problems": []})
    while running.http.get("/api/v1/pipelines/flowing").status_code != 404:
        pass
    count = len(rows(server))
    server.write("flowing.py", flowing(1))
    assert running.http.post("/api/v1/reload").json()["steps"] == {"flowing": "add"}
    while running.http.get("/api/v1/pipelines/flowing").status_code == 404:
        pass
    until_row(server, running, mark=1)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0

    assert [row["id"] for row in rows(server)] == list(range(len(rows(server))))
    assert [row["mark"] for row in rows(server)] == [0] * count + [1] * (len(rows(server)) - count)
