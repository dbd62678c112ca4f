"""The work of the benchmarks on Spark: lines of JSON, changed, one in ten dropped; and loops written by hand for it.

`python -m benchmarks.spark_work NAME IN OUT` runs one loop, or the pipeline on one machine if NAME is a delivery, in
this process and prints what it used, as JSON.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from benchmarks.workload import cents, dropped

standard = json.JSONEncoder(separators=(",", ":")).encode
"""What orjson writes, with the means of Python itself."""


def change(order: dict[str, Any]) -> dict[str, Any]:
    """What every contender does to a record: a sum, a band and a digest."""
    amount = order["amount"]
    order["cents"] = cents(order)
    order["band"] = "high" if amount > 400 else "mid" if amount > 100 else "low"
    order["digest"] = hashlib.blake2b(f"{order['user']}|{order['ts']}|{amount}".encode(), digest_size=8).hexdigest()
    return order


def loop(
    source: Path, out: Path, decode: Callable[[bytes], dict[str, Any]], encode: Callable[[dict[str, Any]], bytes]
) -> None:
    """The loop that one would write, which keeps nothing: killed, it starts from the beginning."""
    with source.open("rb") as lines, out.open("wb") as to:
        for line in lines:
            order = decode(line)
            if not dropped(order):
                to.write(encode(change(order)) + b"\n")
        to.flush()
        os.fsync(to.fileno())


def standard_loop(source: Path, out: Path) -> None:
    loop(source, out, json.loads, lambda order: standard(order).encode())


def orjson_loop(source: Path, out: Path) -> None:
    loop(source, out, orjson.loads, orjson.dumps)


LOOPS = {"json": standard_loop, "orjson": orjson_loop}


def runner(name: str) -> Callable[[Path, Path], None]:
    """What does the work, with everything imported that it needs."""
    if name in LOOPS:
        return LOOPS[name]
    from benchmarks.spark_engine import Delivery, run_here

    return partial(run_here, delivery=cast(Delivery, name))


def main(name: str, source: str, out: str) -> None:
    run = runner(name)
    started, cpu = time.perf_counter(), time.process_time()
    run(Path(source), Path(out))
    used = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(used))


if __name__ == "__main__":
    main(*sys.argv[1:])
