"""What `run` logs: recoveries as they come. Start and end are in its display, and nothing is said twice."""

from pathlib import Path

from command_folder import Folder

FAILING = """
from conduit_connectors import file
from conduit_py import Destination, FatalError, Pipeline, Recovery, Source, TransientError, sdk

class Lake(sdk.DestinationConnector[sdk.Options]):
    async def write(self, batch):
        raise {error}("the lake is away")

p = Pipeline(
    "p",
    sources=[Source("rows", file.Source(path="in.jsonl", format="json"))],
    destinations=[Destination("lake", Lake())],
    recovery=Recovery(retries=2, delay_seconds=0.01, delay_max_seconds=0.01),
)
"""


def test_run_warns_of_each_recovery_and_says_once_how_it_ended(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.numbers(1)
    folder.write("p.py", FAILING.format(error="TransientError"))
    answer = folder.run()
    warnings = [line for line in answer.stderr.splitlines() if " WARNING conduit_py: " in line]

    assert answer.code == 1
    assert len(warnings) == 2
    assert all("pipeline p failed in lake" in line and "[run.transient]" in line for line in warnings)
    rest = [line for line in answer.stderr.splitlines() if line not in warnings]
    assert len([line for line in rest if "the lake is away" in line]) == 1


def test_run_logs_no_end_beside_its_display(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.numbers(1)
    folder.write("p.py", FAILING.format(error="FatalError"))
    answer = folder.run()

    assert answer.code == 1
    assert answer.stderr.count("the lake is away") == 1
