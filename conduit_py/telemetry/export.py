"""The dashboards and alerts as files, for Grafana and Prometheus to load."""

import json
from pathlib import Path

from conduit_py.telemetry.alerts import rules_text
from conduit_py.telemetry.boards.dead_letters import DEAD_LETTERS
from conduit_py.telemetry.boards.fleet import FLEET
from conduit_py.telemetry.boards.node import NODE
from conduit_py.telemetry.boards.pipeline import PIPELINE
from conduit_py.telemetry.boards.runtime import RUNTIME
from conduit_py.telemetry.panels import board_json

BOARDS = (FLEET, PIPELINE, NODE, DEAD_LETTERS, RUNTIME)


def exported_files() -> dict[str, str]:
    """The content of each file, by its name."""
    boards = {f"{board.uid}.json": json.dumps(board_json(board), indent=2) + "\n" for board in BOARDS}
    return {**boards, "alerts.yml": rules_text()}


def export(folder: Path) -> list[Path]:
    """Write all files into a folder, which is made if need be; those of an earlier export are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in exported_files().items():
        path = folder / name
        path.write_text(text)
        paths.append(path)
    return paths
