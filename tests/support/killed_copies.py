"""Copies of a file by a real process that is killed: again and again, until it was killed often enough."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from warm_python import COMMAND, WarmPython

from conduit_py.testing.crash import CrashReport, run_with_kills

COPIES_MAX = 20


def killed_copies(
    folder: Path,
    pipeline: str,
    content: str,
    *,
    kills: int,
    points: Sequence[str],
    seconds_max: float,
    preloaded: Sequence[str] = (),
    state: Callable[[int], str] = lambda copy: "state",
) -> Iterator[tuple[Path, CrashReport]]:
    """Have `pipeline` copy in.jsonl, with this content, to out.jsonl; the folder of each copy, and how it went.

    A quick machine may be done before it was killed often enough: then it copies once more. Its processes need not
    import the `preloaded` modules. `state` says where the state of each copy is, which no other copy may have.
    """
    left = kills
    for seed in range(COPIES_MAX):
        directory = folder / str(seed)
        directory.mkdir()
        (directory / "copy.py").write_text(pipeline)
        (directory / "in.jsonl").write_text(content)
        report = run_with_kills(
            [COMMAND, "run", "copy.py", "--state", state(seed)],
            kills_max=left,
            points=points,
            seed=seed,
            delay_max_seconds=0.5,
            seconds_max=seconds_max,
            directory=directory,
            popen=partial(WarmPython, preloaded=preloaded),
        )
        yield directory, report
        left -= report.kills.total()
        if left <= 0:
            return
