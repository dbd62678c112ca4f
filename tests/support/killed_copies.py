"""Copies of a file by a real process that is killed: again and again, until it was killed often enough."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from conduit_py.testing.crash import CrashReport, run_with_kills


def killed_copies(
    folder: Path, pipeline: str, content: str, *, kills: int, points: Sequence[str], copies_max: int, seconds_max: float
) -> Iterator[tuple[Path, CrashReport]]:
    """Have `pipeline` copy in.jsonl, with this content, to out.jsonl; the folder of each copy, and how it went.

    A quick machine may be done before it was killed often enough: then it copies once more.
    """
    left = kills
    for seed in range(copies_max):
        directory = folder / str(seed)
        directory.mkdir()
        (directory / "copy.py").write_text(pipeline)
        (directory / "in.jsonl").write_text(content)
        report = run_with_kills(
            [Path(sys.executable).with_name("conduit-py"), "run", "copy.py", "--state", "state"],
            kills_max=left,
            points=points,
            seed=seed,
            delay_max_seconds=1.5,
            seconds_max=seconds_max,
            directory=directory,
        )
        yield directory, report
        left -= report.kills.total()
        if left <= 0:
            return
