"""Runs the example of a connector's page, with the addresses of the servers of tests in place of those in its text."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from connector_pages import EXAMPLES
from postgres_changes import PATIENCE_SECONDS

import conduit_py
from conduit_py import Pipeline


def load_example(name: str, folder: Path, replaced: dict[str, str], **names: Any) -> list[Pipeline]:
    """The pipelines of an example in the order in which it defines them."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "pipeline.py"
    path.write_text(text)
    found = runpy.run_path(str(path), init_globals=names)
    return [value for value in found.values() if isinstance(value, Pipeline)]


async def run_until(pipeline: Pipeline, has_arrived: Callable[[], bool], *, state: Path) -> None:
    """Run a pipeline until something is so; one that ends must have ended well."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with conduit_py.running(pipeline, state=state) as run:
            while not has_arrived():
                if run.outcome is not None:
                    assert run.outcome.error is None, run.outcome
                    break
                await trio.sleep(0.05)
    assert has_arrived()
