"""The state of a project: `run` and `serve` share it, and no id has two owners."""

import shutil
import time
from typing import TYPE_CHECKING, Any

from conduit_server import Running

if TYPE_CHECKING:
    from tests.cli.conftest import Command, Serving


def test_a_server_continues_where_a_run_ended(command: "Command") -> None:
    command("init")
    assert command("run", "pipelines/orders.py").returncode == 0
    lake = command.folder / "data/lake.jsonl"
    delivered = lake.read_text()
    process = command.start("serve", "--pipelines", "pipelines", "--port", "0")
    assert process.stdout is not None
    server = Running(process, process.stdout.readline().split()[-1])
    server.until("orders", lambda shown: shown["status"] == "completed")
    process.terminate()
    process.wait()

    assert lake.read_text() == delivered != ""


def test_two_files_do_not_share_the_positions_of_an_id(command: "Command") -> None:
    text = command.pipeline("Count(to=5)")
    command.write(text, "others.py")
    (command.folder / "weekly").mkdir()
    shutil.copy(command.folder / "ends.py", command.folder / "weekly")
    command.write(text, "weekly/orders.py")
    assert command("run", "orders.py").returncode == 0

    for file in ("others.py", "weekly/orders.py"):
        refused = command("run", file)
        assert refused.returncode == 3
        assert refused.stderr.splitlines() == [
            f"error: the id 'numbers' of {file} is also that of a pipeline in orders.py, "
            "whose positions are in .conduit/state",
            "  positions are stored by id: give one of them another id, or use --state for one of them",
        ]
        assert command("run", file, "--state", "state-of-" + file.replace("/", "-")).returncode == 0
    for same in (f"{command.folder}/orders.py", "./orders.py"):
        assert command("run", same).returncode == 0
    assert command.numbers() == [1, 2, 3, 4, 5] * 3


def test_a_pipeline_that_a_reload_adds_is_known_to_come_from_its_file(serving: "Serving") -> None:
    server = serving.start()
    serving.add("late", source="Count(to=5)")
    assert serving("pipelines", "reload").returncode == 0
    serving.until("late", lambda shown: shown["status"] == "completed")
    server.terminate()
    assert server.wait(300) == 0
    text = (serving.folder / "late.py").read_text()
    shutil.copy(serving.folder / "ends.py", serving.command.folder)
    serving.command.write(text, "others.py")
    refused = serving.command("run", "others.py")

    assert refused.returncode == 3
    assert "is also that of a pipeline in pipelines/late.py" in refused.stderr


def test_a_reload_does_not_add_a_pipeline_whose_state_belongs_to_another_file(serving: "Serving") -> None:
    serving.add("mine", source="Count(to=5)")
    text = (serving.folder / "mine.py").read_text()
    (serving.folder / "mine.py").unlink()
    shutil.copy(serving.folder / "ends.py", serving.command.folder)
    serving.command.write(text, "others.py")
    assert serving.command("run", "others.py").returncode == 0
    serving.start()
    (serving.folder / "mine.py").write_text(text)
    serving("pipelines", "reload")

    def problems() -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = serving.json("pipelines", "list")["problems"]
        return shown

    deadline = time.monotonic() + 300
    while not problems():
        assert time.monotonic() < deadline
    [problem] = problems()
    assert "is also that of a pipeline in others.py" in problem["message"]
    assert serving.json("pipelines", "list")["pipelines"] == []


def test_a_pipeline_may_move_to_another_file(command: "Command") -> None:
    text = command.pipeline("Count(to=5)")
    assert command("run", "orders.py").returncode == 0
    command.write(text, "renamed.py")
    command.write("# the pipeline is in renamed.py now", "orders.py")
    assert command("run", "renamed.py").returncode == 0
    command.write(text, "again.py")
    (command.folder / "renamed.py").unlink()

    assert command("run", "again.py").returncode == 0
    assert command.numbers() == [1, 2, 3, 4, 5]


def test_the_state_of_a_run_of_an_older_version_is_continued(command: "Command") -> None:
    command.pipeline("Count(to=5)")
    assert command("run", "orders.py", "--state", ".conduit/orders").returncode == 0

    assert command("run", "orders.py").returncode == 0
    assert command.numbers() == [1, 2, 3, 4, 5]
    assert not (command.folder / ".conduit/state").exists()


def test_the_state_of_a_server_of_an_older_version_is_continued(command: "Command") -> None:
    command.pipeline("Count(to=5)")
    assert command("run", "orders.py", "--state", ".conduit/serve").returncode == 0

    assert command("run", "orders.py").returncode == 0
    assert command.numbers() == [1, 2, 3, 4, 5]


def test_a_server_refuses_to_deliver_again_what_an_older_version_has_run(command: "Command") -> None:
    command.pipeline("Count(to=5)")
    assert command("run", "orders.py", "--state", ".conduit/orders").returncode == 0
    refused = command("serve", "--pipelines", "orders.py", "--port", "0")

    assert refused.returncode == 3
    assert "pipeline 'numbers' was run before with its positions in .conduit/orders" in refused.stderr
    assert "continue with --state .conduit/orders, or remove that directory" in refused.stderr
