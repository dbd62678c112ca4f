"""The OpenAPI document against the real server: whatever one sends, it answers as documented."""

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.conftest import Server

PIPELINE = """
from conduit_py import Destination, Pipeline, Source
from conduit_connectors import generator, log

{id} = Pipeline(
    "{id}",
    sources=[Source("made", generator.Source(rate=10))],
    destinations=[Destination("kept", log.Destination(level="debug"))],
)
"""
KNOWN = '[parameters]\n"path.id" = "a"\n"path.source" = "made"\n"path.node" = "kept"\n'
ANY = ""


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [ANY, KNOWN], ids=["any parameters", "parameters that exist"])
def test_nothing_one_sends_is_answered_otherwise_than_documented(server: "Server", parameters: str) -> None:
    for id in ("a", "b"):
        server.write(f"{id}.py", PIPELINE.format(id=id))
    running = server.start()
    assert len(running.http.get("/api/v1/pipelines").json()["pipelines"]) == 2
    (server.folder / "schemathesis.toml").write_text(parameters)
    line = [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/api/v1/openapi.json"]
    # The streams are left out, for they do not end.
    streams = ["--exclude-path", "/api/v1/live", "--exclude-path-regex", "/tap$"]
    options = [*streams, "--max-examples", "15", "--generation-deterministic", "--no-color"]
    # A busy machine is slow to import all plugins for its list of them.
    options += ["--request-timeout", "120"]
    done = subprocess.run(
        [*line, *options], cwd=server.folder, env={**os.environ, "COLUMNS": "150"}, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    paths = running.http.get("/api/v1/openapi.json").json()["paths"]
    tested = [
        method for path, methods in paths.items() if path != "/api/v1/live" and "/tap" not in path for method in methods
    ]
    assert len(tested) >= 15
    assert f"Tested: {len(tested)}" in done.stdout
    assert running.http.get("/healthz").status_code == 200
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert "Traceback" not in server.log()
