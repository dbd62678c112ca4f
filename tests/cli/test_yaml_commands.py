"""The commands that take a file take Conduit's YAML too."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Command, CommandInside

PIPELINE = """\
version: 2.2
pipelines:
  - id: {id}
    status: {status}
    connectors:
      - {{id: in, type: source, plugin: builtin:generator, settings: {{recordCount: 5}}}}
      - {{id: out, type: destination, plugin: builtin:file, settings: {{path: "{out}"}}}}
"""


def pipeline(id: str = "numbers", *, status: str = "running", out: str = "out.txt") -> str:
    return PIPELINE.format(id=id, status=status, out=out)


def test_a_yaml_file_runs_and_a_second_run_goes_on_where_the_first_ended(command: "Command") -> None:
    command.write(pipeline(), "orders.yaml")
    first, second = command("run", "orders.yaml"), command("run", "orders.yaml")

    assert (first.returncode, second.returncode) == (0, 0)
    assert "numbers: completed: 5 read, 5 acked" in first.stdout
    assert "nothing new since the last run" in second.stdout
    assert len(command.out.read_text().splitlines()) == 5


def test_a_yaml_file_is_checked_and_drawn(inside: "CommandInside") -> None:
    inside.write(pipeline(), "orders.yml")

    ok, guarantee = inside("check", "orders.yml").stdout.splitlines()
    assert ok == "numbers: ok, 1 source, 0 processors, 1 destination"
    assert guarantee.startswith("  in → out: at least once, in order: ")
    assert "source · generator" in inside("graph", "orders.yml").stdout


def test_problems_are_reported_at_once_and_nothing_starts(inside: "CommandInside") -> None:
    text = pipeline() + pipeline("second").replace("version: 2.2\npipelines:\n", "").replace(
        "recordCount", "recordcount"
    )
    inside.write(text, "orders.yaml")
    checked, run = inside("check", "orders.yaml"), inside("run", "orders.yaml")

    assert (checked.returncode, run.returncode) == (2, 2)
    assert (
        checked.stderr.splitlines()
        == run.stderr.splitlines()
        == [
            "orders.yaml:11: pipelines.second.connectors.in.settings.recordcount: there is no such setting "
            "(did you mean 'recordCount'?)",
            "1 problem; nothing was started",
        ]
    )
    assert not inside.out.exists()


def test_a_sound_pipeline_of_the_file_can_be_run_alone(inside: "CommandInside") -> None:
    text = pipeline() + pipeline("second").replace("version: 2.2\npipelines:\n", "").replace("generator", "genrator")
    inside.write(text, "orders.yaml")

    assert inside("check", "orders.yaml", "--pipeline", "numbers").returncode == 0
    assert inside("check", "orders.yaml", "--pipeline", "second").returncode == 2


def test_a_stopped_pipeline_does_not_run_unless_it_is_asked_for(inside: "CommandInside") -> None:
    stopped = pipeline("parked", status="stopped", out="parked.txt").replace("version: 2.2\npipelines:\n", "")
    inside.write(pipeline() + stopped, "orders.yaml")
    inside.write(pipeline("alone", status="stopped"), "parked.yaml")
    both, alone = inside("run", "orders.yaml"), inside("run", "parked.yaml")

    assert both.returncode == 0
    assert "parked" not in both.stdout
    assert not Path("parked.txt").exists()
    assert alone.returncode == 2
    assert alone.stderr.splitlines()[0] == (
        "parked.yaml: all its pipelines have status: stopped (run one of them with --pipeline ID)"
    )
    assert inside("run", "orders.yaml", "--pipeline", "parked").returncode == 0
    assert len(Path("parked.txt").read_text().splitlines()) == 5


def test_warnings_are_said_and_nothing_is_kept_from_running(inside: "CommandInside") -> None:
    inside.write(pipeline().replace("status: running", "state: running"), "orders.yaml")
    checked = inside("check", "orders.yaml")
    code, (answer,) = inside.json("check", "orders.yaml")

    assert (checked.returncode, code) == (0, 0)
    assert checked.stderr == (
        "warning: orders.yaml:4:5: pipelines.numbers.state: there is no such key, so it has no effect "
        "(did you mean 'status'?)\n"
    )
    assert answer["warnings"] == [
        {
            "path": "pipelines.numbers.state",
            "message": "there is no such key, so it has no effect",
            "suggestion": "did you mean 'status'?",
            "file": "orders.yaml",
            "line": 4,
            "column": 5,
        }
    ]


def test_a_file_without_pipelines_is_a_problem(inside: "CommandInside") -> None:
    inside.write("version: 2.2\npipelines: []\n", "orders.yaml")
    done = inside("check", "orders.yaml")

    assert done.returncode == 2
    assert "orders.yaml: there is no pipeline in this file" in done.stderr


def test_a_secret_is_never_printed_whoever_complains(command: "Command") -> None:
    command.write(pipeline(out="${HIDING_PLACE}/out.txt"), "orders.yaml")
    (command.folder / "hiding-place-4711").write_text("a file, so it can be no folder")
    runs = [
        command("run", "orders.yaml", *more, HIDING_PLACE="hiding-place-4711") for more in ([], ["--json"], ["--debug"])
    ]
    missing = command("run", "orders.yaml")

    for done in runs:
        assert done.returncode == 1
        assert "***" in done.stdout + done.stderr
        assert "4711" not in done.stdout + done.stderr
    assert missing.returncode == 2
    assert missing.stderr.splitlines() == [
        "orders.yaml:7: pipelines.numbers.connectors.out.settings.path: the environment variable HIDING_PLACE is not "
        "set (set it, or give a default: ${HIDING_PLACE:-…})",
        "1 problem; nothing was started",
    ]
