"""The files for Grafana and Prometheus: up to date, well-formed, and proven by promtool."""

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conduit_py.cli.main import answer
from conduit_py.telemetry.alerts import ALERTS
from conduit_py.telemetry.export import BOARDS, exported_files
from conduit_py.telemetry.metrics import all_metrics
from conduit_py.telemetry.panels import COLUMNS, board_json

if TYPE_CHECKING:
    from prometheus_server import Programs

FOLDER = Path(__file__).parent.parent.parent / "dashboards"

boards = pytest.mark.parametrize("board", [board_json(board) for board in BOARDS], ids=lambda board: str(board["uid"]))


@pytest.mark.parametrize("name", sorted(exported_files()))
def test_what_is_committed_is_what_the_code_gives(name: str) -> None:
    assert (FOLDER / name).read_text() == exported_files()[name], "run: conduit-py dashboards export --out dashboards"


def test_there_is_a_dashboard_for_each_and_nothing_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*exported_files(), "alerts.test.yml", "README.md"}


@boards
def test_panels_have_numbers_and_places_of_their_own(board: dict[str, Any]) -> None:
    panels = board["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < COLUMNS


@boards
def test_a_dashboard_declares_every_variable_that_it_uses(board: dict[str, Any]) -> None:
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}

    assert used == declared


@boards
def test_every_query_is_about_the_chosen_servers(board: dict[str, Any]) -> None:
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    texts = targets + [each["expr"] for each in board["annotations"]["list"]]
    behind = [text[found.end() :] for text in texts for found in re.finditer(r"\b(?:conduit|process|python)_\w+", text)]

    assert [variable["name"] for variable in board["templating"]["list"]][:3] == ["datasource", "job", "instance"]
    assert all(each.startswith('{job=~"$job", instance=~"$instance"') for each in behind)


@boards
def test_restarts_and_changes_of_definitions_are_marked(board: dict[str, Any]) -> None:
    marked = [annotation["name"] for annotation in board["annotations"]["list"]]

    assert marked == ["Server started", "Pipeline started again", "Definition changed"]


def test_every_alert_links_to_its_part_of_the_runbook() -> None:
    page = FOLDER.parent / "docs" / "operate" / "runbook.md"
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", page.read_text(), re.MULTILINE)}
    links = re.findall(r'runbook_url: "(.*)"', exported_files("https://docs.local/runbook/")["alerts.yml"])

    assert links == [f"https://docs.local/runbook/#{alert.name.lower()}" for alert in ALERTS]
    assert {link.partition("#")[2] for link in links} == anchors


def test_every_metric_is_on_some_dashboard() -> None:
    drawn = " ".join(query.expr for board in BOARDS for panel in board.panels for query in panel.queries)
    # How many connectors and processors there are does not change while a server runs.
    counted_once = {"conduit_connectors", "conduit_processors"}
    missing = {metric.name for metric in all_metrics() if not any(name in drawn for name in metric.series)}

    assert missing == counted_once


def test_every_alert_is_seen_firing_in_a_unit_test() -> None:
    text = (FOLDER / "alerts.test.yml").read_text()
    fired = set(re.findall(r'labels: ALERTS\{alertname="(\w+)", alertstate="firing"', text))
    fired |= set(re.findall(r"alertname: (\w+)", text))

    assert fired == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("arguments", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]])
def test_promtool_finds_the_rules_to_be_right(arguments: list[str], prometheus_programs: "Programs") -> None:
    done = subprocess.run(
        [prometheus_programs.promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_writes_all_files_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    code = answer(["dashboards", "export", "--out", str(out), "--json"])

    assert code == 0
    assert {path.name: path.read_text() for path in out.iterdir()} == exported_files()
    assert json.loads(capsys.readouterr().out) == {"files": [str(out / name) for name in exported_files()]}


def test_a_folder_that_cannot_be_written_is_a_fault_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    code = answer(["dashboards", "export", "--out", str(tmp_path / "taken")])

    assert code == 3
    assert "cannot be written" in capsys.readouterr().err
