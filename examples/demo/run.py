"""Set the demo up in .demo/ (or the folder named), run it as a user would, and show what came of it.

What follows the name of the folder goes to `conduit-py run` as it is.
"""

import collections
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / ".demo"
OPTIONS = sys.argv[2:]
COMMAND = str(Path(sys.executable).parent / "conduit-py")


def main() -> int:
    prepare()
    say("The pipeline (conduit-py graph pipeline.py)")
    subprocess.run([COMMAND, "graph", "pipeline.py"], cwd=FOLDER, check=True)
    say(f"Running it ({' '.join(['conduit-py run pipeline.py', *OPTIONS])})")
    ran = subprocess.run([COMMAND, "run", "pipeline.py", *OPTIONS], cwd=FOLDER)
    if ran.returncode == 0:
        report()
    return ran.returncode


def prepare() -> None:
    """A fresh folder with the pipeline and what the till wrote: 5000 receipts, some of them broken."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    shutil.copy(HERE / "pipeline.py", FOLDER)
    with (FOLDER / "till.csv").open("w") as till:
        till.write("receipt,price\n")
        for receipt in range(5000):
            price = "free" if receipt % 500 == 250 else f"{receipt % 600}.50" if receipt % 100 else "0"
            till.write(f"{receipt},{price}\n" if receipt != 1234 else "a line that is torn off\n")


def report() -> None:
    say(f"What came of it (in {FOLDER.name}/)")
    for name in ("lake.jsonl", "large-orders.jsonl", "dead-letters.jsonl"):
        lines = (FOLDER / name).read_text().splitlines()
        print(f"{name}: {len(lines)} lines, the first is\n  {lines[0][:150]}{'…' if len(lines[0]) > 150 else ''}")
    letters = [json.loads(line) for line in (FOLDER / "dead-letters.jsonl").read_text().splitlines()]
    print("dead letters by cause:")
    for (node, error), count in collections.Counter((each["node"], each["error"]) for each in letters).most_common():
        print(f"  {count:3} {node}: {error}")
    print("\nRun it again in that folder and it resumes: there is nothing new. Next: README.md, examples/")
    print("See pipelines at work in a browser: `make demo-page`, then open http://127.0.0.1:8080")


def say(title: str) -> None:
    print(f"\n── {title} ".ljust(100, "─"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
