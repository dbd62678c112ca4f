"""A process that is out of memory (`ulimit -v`): it ends with an error and an exit code, and never sleeps for ever."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOG = """
import resource
from conduit_connectors import file, generator
from conduit_py import Destination, Pipeline, Source

held = []

def hog(record):
    if not held:
        # As `ulimit -v` would, but after everything is loaded: how much that takes differs from machine to machine.
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 100_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    held.append(bytearray({size}))
    held.append([object() for _ in range({size} // 50)])
    return record

pipeline = Pipeline(
    "hog",
    sources=[Source("in", generator.Source(count=100_000_000))],
    processors=[hog],
    destinations=[Destination("out", file.Destination(path="/dev/null"))],
)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("size", [1_000, 30_000, 300_000])
def test_it_ends_with_an_error(size: int, tmp_path: Path) -> None:
    (tmp_path / "hog.py").write_text(HOG.replace("{size}", str(size)))
    command = [str(Path(sys.executable).with_name("conduit-py")), "run", "hog.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)

    # CPython aborts where it has no memory even for the error. msgspec, whose encoder does not look at each allocation,
    # ends with a segmentation fault: both end the process, and the next run goes on.
    assert ended.returncode in (1, -signal.SIGABRT, -signal.SIGSEGV)
    assert "bug in conduit-py" not in ended.stderr
    if ended.returncode == -signal.SIGSEGV:
        return
    # The word of conduit-py itself, or of CPython where that has no memory to get so far.
    assert (
        "out of memory" in ended.stderr
        or "MemoryError" in ended.stderr
        or ("emory" in ended.stderr and ended.returncode == -signal.SIGABRT)
    )


NO_STACK = """
import resource
from conduit_connectors import generator
from conduit_py import Destination, Pipeline, Source, sdk

class Lake(sdk.DestinationConnector[sdk.Options]):
    blocking = True

    def write(self, batch):
        raise AssertionError("a thread was started")

def leave_no_room(record):
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 3_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return record

pipeline = Pipeline(
    "no_stack",
    sources=[Source("in", generator.Source(count=10))],
    processors=[leave_no_room],
    destinations=[Destination("lake", Lake())],
)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_room_for_the_stack_of_a_thread_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "no_stack.py").write_text(NO_STACK)
    command = [str(Path(sys.executable).with_name("conduit-py")), "run", "no_stack.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)

    assert ended.returncode == 1
    assert "out of memory" in ended.stderr
    assert "bug in conduit-py" not in ended.stderr
