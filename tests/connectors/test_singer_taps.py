"""Real taps from PyPI, of the old and the new SDK, against real servers, and killed: `make test-taps`.

Each is installed in an environment of its own, once. They read the same eight rows, from a file, an API, PostgreSQL,
MariaDB and S3.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from conduit_connectors import singer
from mariadb_changes import run_sql as run_on_mariadb
from postgres_changes import run_sql
from pythons import find_python
from warm_python import WarmCommand

from conduit_py.testing import source_acceptance

pytestmark = pytest.mark.skipif(os.environ.get("CONDUIT_TAPS") != "1", reason="installs taps: make test-taps")

ENVIRONMENTS = Path(sys.prefix) / "taps"
ROWS = [{"id": number, "at": f"2026-01-0{number + 1}T00:00:00Z", "name": f"row {number}"} for number in range(8)]
SECONDS = 300


def command(distribution: str, version: str, name: str, *, python: str | None = None) -> list[str]:
    """The command of a tap, installed on first use, with an interpreter of this version if it needs one."""
    folder = ENVIRONMENTS / f"{distribution}-{version}"
    if not (folder / "ready").exists():
        interpreter = sys.executable if python is None else find_python(python)
        assert interpreter is not None, f"{distribution} needs Python {python}, which is not on this machine"
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        # Old taps import pkg_resources, which newer ones of setuptools do not have.
        subprocess.run([*pip, "setuptools<80", f"{distribution}=={version}"], check=True)
        (folder / "ready").touch()
    return [str(folder / "bin" / name)]


def jsonl(tmp_path: Path) -> singer.Source:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {"path": str(tmp_path / "*.jsonl"), "stream_name": "rows", "primary_keys": ["id"]}
    return singer.Source(command=command("tap-jsonl", "0.3.1", "tap-jsonl"), config=config)


class _Api(BaseHTTPRequestHandler):
    """Rows at or after `since`."""

    def do_GET(self) -> None:
        since = parse_qs(urlsplit(self.path).query).get("since", [""])[0]
        body = json.dumps([row for row in ROWS if str(row["at"]) >= since]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def rest(tmp_path: Path) -> Iterator[singer.Source]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stream = {
        "name": "rows",
        "path": "/rows",
        "primary_keys": ["id"],
        "replication_key": "at",
        "records_path": "$[*]",
        "start_date": "2026-01-01T00:00:00Z",
        "source_search_field": "since",
        "source_search_query": "$last_run_date",
    }
    url = f"http://127.0.0.1:{server.server_port}"
    config = {"api_url": url, "pagination_request_style": "default", "streams": [stream]}
    yield singer.Source(command=command("tap-rest-api-msdk", "1.4.2", "tap-rest-api-msdk"), config=config)
    server.shutdown()


TABLE = "CREATE TABLE orders (id int PRIMARY KEY, at timestamp NOT NULL, name varchar(20))"
VALUES = ", ".join(f"({row['id']}, '{str(row['at'])[:10]}', '{row['name']}')" for row in ROWS)
INSERT = f"INSERT INTO orders VALUES {VALUES}"
BY_ID = {"replication-method": "INCREMENTAL", "replication-key": "id"}


def new_postgres(postgres: str) -> singer.Source:
    run_sql(postgres, TABLE, INSERT)
    tap = command("meltanolabs-tap-postgres", "0.10.0", "tap-postgres")
    url = postgres.replace("tester@", "tester:none@")
    config = {"filter_schemas": ["public"]}
    return singer.Source(command=tap, config=config, secret_config={"sqlalchemy_url": url}, metadata={"*": BY_ID})


def old_postgres(postgres: str) -> singer.Source:
    run_sql(postgres, TABLE, INSERT)
    at = urlsplit(postgres)
    config = {"host": at.hostname, "port": at.port, "user": at.username, "dbname": at.path[1:]}
    # No later version of Python than 3.9 is allowed by it: a tap has an interpreter of its own.
    tap = command("pipelinewise-tap-postgres", "2.1.0", "tap-postgres", python="3.9")
    return singer.Source(
        command=tap,
        config=config,
        secret_config={"password": "none"},
        catalog_argument="--properties",
        select=["public-orders"],
        metadata={"*": BY_ID},
    )


def old_mariadb(mariadb: str) -> singer.Source:
    run_on_mariadb(mariadb, TABLE)
    run_on_mariadb(mariadb, INSERT)
    at = urlsplit(mariadb)
    config = {"host": at.hostname, "port": str(at.port), "user": at.username, "database": at.path[1:]}
    tap = command("pipelinewise-tap-mysql", "1.6.0", "tap-mysql")
    return singer.Source(
        command=tap,
        config=config,
        secret_config={"password": at.password or ""},
        catalog_argument="--properties",
        select=["*orders"],
        metadata={"*": BY_ID},
    )


TestJsonl = source_acceptance(jsonl, seconds=SECONDS)
TestRest = source_acceptance(rest, seconds=SECONDS)
TestNewPostgres = source_acceptance(new_postgres, seconds=SECONDS)
TestOldPostgres = source_acceptance(old_postgres, seconds=SECONDS)
TestOldMariadb = source_acceptance(old_mariadb, seconds=SECONDS)

KILLS = 3
"""How often each of both is killed: the tap, and the process that reads it."""
PIPELINE = """
from conduit_connectors import file, singer
from conduit_py import Pipeline

pipeline = Pipeline(
    "tap",
    sources={{"tap": singer.Source(**{options})}},
    destinations={{"out": file.Destination(path="out.jsonl", format="json")}},
    delivery="exactly_once",
)
"""


def run_with_kills(source: singer.Source, folder: Path) -> set[int]:
    """Kill the tap and the process that reads it in turn, at random moments; then let it end. Returns all ids."""
    secret = {name: each.get_secret_value() for name, each in source.options.secret_config.items()}
    options = {**source.options.model_dump(), "secret_config": secret}
    (folder / "tap.py").write_text(PIPELINE.format(options=options))
    rng = random.Random(len(source.options.command[0]))
    seconds, kills = 20.0, Counter(tap=0, reader=0)
    while True:
        began = time.monotonic()
        victim, count = min(kills.items(), key=lambda each: each[1])
        with WarmCommand("run", "tap.py", "--state", "state", cwd=folder, stderr=subprocess.PIPE) as process:
            try:
                process.communicate(timeout=rng.uniform(0, seconds) if count < KILLS else SECONDS)
            except subprocess.TimeoutExpired:
                kills[victim] += kill_soon(process, victim)
                process.communicate(timeout=SECONDS)
        if process.returncode == 0:
            if count >= KILLS:
                break
            # Shorter from now on, so that kills come before the end.
            seconds = min(seconds, time.monotonic() - began)
    print(f"killed -9: {dict(kills)}")
    return {json.loads(line)["id"] for line in (folder / "out.jsonl").read_text().splitlines()}


def kill_soon(process: subprocess.Popen[bytes], victim: str) -> bool:
    """Kill a process that runs a pipeline, or its tap as soon as it has one. Returns False if it ended before."""
    while process.poll() is None:
        with suppress(OSError):
            # Of every thread: the source starts its tap in one of its own.
            children = Path(f"/proc/{process.pid}/task").glob("*/children")
            taps = [child for each in children for child in each.read_text().split()]
            if victim == "reader" or taps:
                os.kill(process.pid if victim == "reader" else int(taps[0]), signal.SIGKILL)
                return True
        time.sleep(0.01)
    return False


def test_a_killed_jsonl_skips_nothing(tmp_path: Path) -> None:
    assert run_with_kills(jsonl(tmp_path), tmp_path) == set(range(8))


def test_a_killed_rest_skips_nothing(tmp_path: Path) -> None:
    for source in rest(tmp_path):
        assert run_with_kills(source, tmp_path) == set(range(8))


def test_a_killed_new_postgres_skips_nothing(postgres: str, tmp_path: Path) -> None:
    assert run_with_kills(new_postgres(postgres), tmp_path) == set(range(8))


def test_a_killed_old_postgres_skips_nothing(postgres: str, tmp_path: Path) -> None:
    assert run_with_kills(old_postgres(postgres), tmp_path) == set(range(8))


def test_a_killed_old_mariadb_skips_nothing(mariadb: str, tmp_path: Path) -> None:
    assert run_with_kills(old_mariadb(mariadb), tmp_path) == set(range(8))
