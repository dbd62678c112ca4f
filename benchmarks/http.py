"""An API into a list, and a file to an API, beside loops by hand on the same library, httpx2.

    python -m benchmarks.http [--records N] [--rounds N]

What the figures mean: `benchmarks.against_loop`. The server is a process of its own, whose CPU is not counted; it
answers from memory. A page has 500 records, and so has a request of the destination. The loop decodes each page and
asks for the next one; it has no position, no retry, no limit and no guard.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from conduit_connectors import file, http

import conduit_py
from benchmarks.against_loop import Counter, compare
from conduit_py import Pipeline, Source

PAGE = 500


class Api(BaseHTTPRequestHandler):
    """Pages of records up to a number, and a place that takes all."""

    protocol_version = "HTTP/1.1"
    records = 0

    def do_GET(self) -> None:
        first = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        rows = [row(number) for number in range(first, min(first + PAGE, self.records))]
        following = first + PAGE if first + PAGE < self.records else None
        self._answer(json.dumps({"data": rows, "next_cursor": following}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"customer {number}", "total": number / 7, "paid": number % 3 == 0, "city": "Köln"}


class HttpBench:
    """The address of the API, and the file that is sent to it."""

    def __init__(self, url: str, folder: Path, records: int) -> None:
        self._url = url
        self._records = records
        self._input = folder / "in.jsonl"
        self._input.write_bytes(msgspec.json.Encoder().encode_lines([row(number) for number in range(records)]))

    def poll_loop(self) -> None:
        decode, kept, cursor = msgspec.json.Decoder().decode, 0, "0"
        with httpx2.Client(trust_env=False) as client:
            while cursor is not None:
                page = decode(client.get(self._url, params={"cursor": cursor}).raise_for_status().content)
                kept += len(page["data"])
                cursor = page["next_cursor"]
        assert kept == self._records

    def poll(self) -> None:
        Counter.arrived = 0
        source = http.Source(url=self._url, records="data", paging="cursor", cursor_path="next_cursor", key_field="id")
        _run(source, Counter())
        assert Counter.arrived == self._records

    def send_loop(self) -> None:
        decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
        with httpx2.Client(trust_env=False) as client, open(self._input, "rb") as lines:
            while some := list(islice(lines, PAGE)):
                body = encode([decode(line) for line in some])
                client.post(self._url, content=body, headers={"content-type": "application/json"}).raise_for_status()

    def send(self) -> None:
        destination = http.Destination(url=self._url, batch="array", batch_records_max=PAGE)
        _run(file.Source(path=self._input, format="json"), destination)


def _run(source: Any, destination: Any) -> None:
    pipeline = Pipeline("bench", sources=[Source("in", source, batch_size=PAGE)], destinations={"out": destination})
    outcome = conduit_py.run(pipeline)
    assert outcome.error is None, outcome.error


@contextmanager
def serve(records: int) -> Iterator[str]:
    """Run the API in a process of its own; its address."""
    command = [sys.executable, "-m", "benchmarks.http", "--serve", "--records", str(records)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="be the API")
    given = parser.parse_args()
    if given.serve:
        Api.records = given.records
        server = HTTPServer(("127.0.0.1", 0), Api)
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
    with serve(given.records) as url, tempfile.TemporaryDirectory() as folder:
        bench = HttpBench(url, Path(folder), given.records)
        compare("API to a list", bench.poll_loop, bench.poll, records=given.records, rounds=given.rounds)
        compare("file to an API", bench.send_loop, bench.send, records=given.records, rounds=given.rounds)


if __name__ == "__main__":
    main()
