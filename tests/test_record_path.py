"""The way of a record, from `read` to the ack, stays short enough to be read in one sitting."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES_MAX = 22
FUNCTIONS_MAX = 110
FRAMES_MAX = 8

# What only surrounds the data path: how a run is started, shown and supervised.
AROUND = ("cli", "telemetry", "config", "graph", "lifecycle")

# Several batches, so that some of them wait while others are flushed.
RECORDS = 2000

PIPELINE = """
import sys
from pathlib import Path
from conduit_py import Destination, Pipeline, Record, Source, processor
from conduit_connectors import file

@processor
def change(record: Record) -> Record:
    if record.payload["n"] == 0:
        frame, frames = sys._getframe(1), 0
        while frame is not None and "conduit_py" in frame.f_code.co_filename:
            frame, frames = frame.f_back, frames + 1
        Path("frames").write_text(str(frames))
    record.payload["changed"] = True
    return record

pipeline = Pipeline(
    "traced",
    sources=[Source("in", file.Source(path="in.jsonl", format="json"))],
    processors=[change],
    destinations=[Destination("out", file.Destination(path="out.jsonl", format="json"))],
)
"""

TRACED_RUN = """
import json, sys, threading
from pathlib import Path
import conduit_connectors, conduit_py
from conduit_py.cli.main import answer
from conduit_py.stream import plugin_calls

# On a busy machine a quick call looks slow and moves to a thread, which is another way than the one measured here.
plugin_calls.SLOW_SECONDS = 3600
runtime, connectors = (str(Path(each.__file__).parent) for each in (conduit_py, conduit_connectors))
called, flowing = set(), False

def note(frame, event, arg):
    global flowing
    if event != "call":
        return
    code = frame.f_code
    if code.co_filename.startswith(connectors):
        flowing = code.co_name == "read" or (flowing and code.co_name != "teardown")
    elif flowing and code.co_filename.startswith(runtime) and not code.co_name.startswith("<"):
        called.add((code.co_filename[len(runtime) + 1 :], code.co_qualname))

threading.setprofile(note)
sys.setprofile(note)
try:
    status = answer(["run", "pipeline.py", "--state", "state"])
finally:
    sys.setprofile(None)
    threading.setprofile(None)
Path("called.json").write_text(json.dumps({"status": status, "called": sorted(called)}))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A traced run. On a busy machine a call may be slow and move to a thread, which is another way: then once more.

    So it is if chance closes processors before their source, whose end is the end of the trace.
    """
    for _ in range(8):
        found = trace(tmp_path_factory.mktemp("traced"))
        if len(found["called"]) <= FUNCTIONS_MAX:
            break
    return found


def trace(at: Path) -> dict[str, Any]:
    (at / "pipeline.py").write_text(PIPELINE)
    (at / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(RECORDS)))
    subprocess.run([sys.executable, "-c", TRACED_RUN], cwd=at, check=True, capture_output=True, timeout=300)
    found: dict[str, Any] = json.loads((at / "called.json").read_text())
    found["called"] = [each for each in found["called"] if not each[0].startswith(AROUND)]
    found["frames"] = int((at / "frames").read_text())
    found["written"] = len((at / "out.jsonl").read_text().splitlines())
    return found


def test_the_traced_run_writes_every_record(traced: dict[str, Any]) -> None:
    assert (traced["status"], traced["written"]) == (0, RECORDS)


def test_a_record_meets_few_files_and_functions(traced: dict[str, Any]) -> None:
    files = sorted({file for file, _ in traced["called"]})
    functions = [f"{file}: {name}" for file, name in traced["called"]]

    assert len(files) > 10, "the trace misses the data path"
    assert len(files) <= FILES_MAX, "\n".join(files)
    assert len(functions) <= FUNCTIONS_MAX, "\n".join(functions)


def test_few_frames_are_between_the_loop_and_the_function_of_the_user(traced: dict[str, Any]) -> None:
    assert 0 < traced["frames"] <= FRAMES_MAX
