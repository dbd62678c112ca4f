"""A state of more keys than its cache holds: time and memory, beside the same state in memory.

    python -m benchmarks.large_state --keys 300000 --cache-megabytes 8

Records of every key in turn come twice, then those of one other key: each session is read from the store twice, for
its second record and when it ends. Memory is the peak of a process of its own, less that of one with few keys.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS_PER_KEY = 4


def make_input(path: Path, keys: int) -> None:
    with path.open("w") as lines:
        for number in range(RECORDS_PER_KEY * keys):
            user = f"user-{number % keys}" if number < 2 * keys else "last"
            lines.write(json.dumps({"user": user, "at": number}) + "\n")


def run(folder: Path, keys: int, cache_bytes: int) -> None:
    from conduit_connectors import clock, file
    from conduit_processors import window

    import conduit_py
    from conduit_py import Pipeline, Processor

    # A session lasts from the first record of its key to the second, which comes `keys` seconds later.
    counts = window.Session(time="at", key="user", gap_seconds=1.2 * keys, clock="clock", windows_max=10**9)
    pipeline = Pipeline(
        "large",
        sources={"in": file.Source(path=folder / "in.jsonl", format="json"), "clock": clock.Source()},
        processors=[Processor("counts", counts, state_cache_bytes=cache_bytes)],
        destinations={"out": file.Destination(path=folder / "out.jsonl", format="json")},
        delivery="exactly_once",
    )
    outcome = conduit_py.run(pipeline, state=folder / "state")
    assert outcome.error is None, outcome


def measure(keys: int, cache_bytes: int) -> tuple[float, float]:
    """Return the CPU seconds and the peak of memory, in megabytes, of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_input(folder / "in.jsonl", keys)
        command = [sys.executable, "-m", "benchmarks.large_state", "--one", name, "--keys", str(keys)]
        command += ["--cache-bytes", str(cache_bytes)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        counts = [json.loads(line)["count"] for line in (folder / "out.jsonl").read_text().splitlines()]
        assert counts == [2] * keys + [2 * keys], f"{len(counts)} sessions"
        seconds, megabytes = ran.stdout.split()[-2:]
        return float(seconds), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=300_000)
    parser.add_argument("--cache-megabytes", type=float, default=8)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache-bytes", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        started = time.process_time()
        run(given.one, given.keys, given.cache_bytes)
        print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    _, least = measure(1000, 1 << 40)
    for name, cache_bytes in (
        ("in memory", 1 << 40),
        (f"cache of {given.cache_megabytes:g} MB", int(given.cache_megabytes * 2**20)),
    ):
        seconds, megabytes = measure(given.keys, cache_bytes)
        a_record = seconds / (RECORDS_PER_KEY * given.keys) * 1e6
        print(f"{name}: {a_record:.1f} µs of CPU a record, {megabytes - least:.0f} MB of memory")


if __name__ == "__main__":
    main()
