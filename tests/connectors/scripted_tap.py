"""A tap of Singer for tests, without a library: rows of a stream from a file, with a STATE after every few of them.

Its config says what it does: `rows` (a JSON file), `every` (rows between STATEs), `inclusive` (the bookmarked row comes
again), `shuffle` (another order at each start), `fail_after` and `hang_after` (rows), `noise` (lines that are no
message), `deaths` (a file: so many of the first runs end with SIGKILL, of the tap or of its parent, after some row).
"""

import json
import os
import random
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any


def put(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")


def plan_death(file: Path, deaths_max: int, rows: int) -> tuple[int, int]:
    """After which row of this run whom to kill: 0 is never."""
    number = int(file.read_text()) if file.exists() else 0
    file.write_text(str(number + 1))
    if number >= deaths_max:
        return 0, 0
    chance = random.Random(number)
    return chance.randint(1, rows), chance.choice([os.getpid(), os.getppid()])


def main(arguments: list[str]) -> int:
    given = {
        name: json.loads(Path(value).read_text())
        for name, value in pairwise(arguments)
        if name in ("--config", "--catalog", "--state")
    }
    config = given["--config"]
    if "--discover" in arguments:
        streams: list[dict[str, Any]] = [
            {"tap_stream_id": name, "stream": name, "schema": {}, "metadata": [{"breadcrumb": [], "metadata": {}}]}
            for name in ("orders", "people")
        ]
        print("some taps say hello first")
        print(json.dumps({"streams": streams}, indent=2))
        return 0
    print(f"INFO begin with {config.get('token')}\x1b[2J", file=sys.stderr, flush=True)
    bookmark = given.get("--state", {}).get("bookmark", -1)
    rows = json.loads(Path(config["rows"]).read_text())
    first = bookmark if config.get("inclusive") and bookmark >= 0 else bookmark + 1
    order = list(range(max(first, 0), len(rows)))
    if config.get("shuffle"):
        random.shuffle(order)
    selected = [each["stream"] for each in given["--catalog"]["streams"] if each["selected"]]
    for stream in selected:
        schema = {"properties": {"id": {"type": "integer"}, "at": {"type": ["null", "string"], "format": "date-time"}}}
        put({"type": "SCHEMA", "stream": stream, "schema": schema, "key_properties": ["id"]})
    deaths = config.get("deaths")
    last, victim = plan_death(Path(deaths["file"]), deaths["count"], max(len(order), 1)) if deaths else (0, 0)
    for done, index in enumerate(order, 1):
        put({"type": "RECORD", "stream": selected[index % len(selected)], "record": rows[index]})
        if done % config.get("every", 3) == 0 and not config.get("shuffle"):
            put({"type": "STATE", "value": {"bookmark": index}})
        if config.get("noise"):
            print("not a message")
        if done == last:
            # What is in the buffer is lost half of the time: messages end anywhere, also in the middle of a line.
            if last % 2:
                sys.stdout.flush()
            os.kill(victim, signal.SIGKILL)
        if done == config.get("fail_after"):
            sys.stdout.flush()
            print("ERROR the API said 503", file=sys.stderr)
            return 1
        if done == config.get("hang_after"):
            sys.stdout.flush()
            time.sleep(10_000)
    if not config.get("shuffle"):
        put({"type": "STATE", "value": {"bookmark": len(rows) - 1}})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
