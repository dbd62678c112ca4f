"""The example of a FastAPI application that runs a pipeline for as long as it serves."""

import importlib.util
import json
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from conduit_py import Status

APP = Path(__file__).parent.parent / "examples" / "fastapi_lifespan" / "app.py"


def test_the_pipeline_runs_while_the_application_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orders.jsonl").write_text('{"amount": 1.5}\n{"amount": 2}\n')
    spec = importlib.util.spec_from_file_location("fastapi_lifespan_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    with TestClient(module.app) as client:
        deadline = time.monotonic() + 100
        while (answer := client.get("/orders/status").json())["acked"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running = module.app.state.running

    assert answer == {"status": "running", "read": 2, "acked": 2, "dead_letters": 0}
    assert running.outcome.status is Status.STOPPED
    assert [json.loads(line)["cents"] for line in Path("lake.jsonl").read_text().splitlines()] == [150, 200]
