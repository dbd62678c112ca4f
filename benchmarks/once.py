"""One contender, once, in this process: prints what it measured as JSON."""

import hashlib
import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.contenders import WORKS


def main(work: str, name: str, records: str, folder: str) -> None:
    contender = WORKS[work][name]
    count = int(records)
    started, cpu = time.perf_counter(), time.process_time()
    at_sink = contender(count, Path(folder))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    print(
        json.dumps(
            {
                "records_per_second": count / seconds,
                "cpu_seconds": cpu_seconds,
                "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "at_sink": at_sink,
                "output_digest": digest(Path(folder) / "out.jsonl"),
            }
        )
    )


def digest(path: Path) -> str:
    """Of the bytes that reached the sink; counting sinks have none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
