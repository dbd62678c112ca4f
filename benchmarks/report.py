"""What every benchmark prints: a table, or JSON with the facts about the machine, and on request a plot."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOAD_MAX = 1.5
"""A machine that is busier than this before the start gives figures that mean little."""


def add_arguments(parser: argparse.ArgumentParser, rounds: int | None = None) -> None:
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw a plot into a file")


class Report:
    """Notes date, machine and load before the benchmark, and prints everything after it."""

    rows: Sequence[Any]
    """Dataclasses, for `--json`."""
    text: str
    svg: str

    def __init__(self, arguments: argparse.Namespace, *, timed: bool = True) -> None:
        self._arguments = arguments
        self._timed = timed
        self.facts: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
        }

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        self.facts["load_after"] = round(os.getloadavg()[0], 2)
        if self._arguments.svg:
            self._arguments.svg.write_text(self.svg)
        if self._arguments.json:
            print(json.dumps(self.facts | {"rows": [asdict(row) for row in self.rows]}))
        else:
            print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.facts.items()) + "\n")
            print(self.text)
        if self._timed and self.facts["load_before"] > LOAD_MAX:
            load = f"the load was {self.facts['load_before']:.1f} before the start"
            print(f"{load}: do not trust times taken on a busy machine", file=sys.stderr)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed: the first two are names, the others figures. An empty line separates groups."""
    rows = [head, *lines]
    widths = [max(len(row[place]) for row in rows if row) for place in range(len(head))]
    aligned = [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=bool(row)))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(aligned)
