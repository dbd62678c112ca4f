"""Definitions of a folder: a file that never finishes loading holds up no other."""

import subprocess
import sys
from pathlib import Path

GOOD = """
from conduit_py import Destination, Pipeline, Source
from conduit_connectors import generator, log

made = Source("in", generator.Source(count=1))
p = Pipeline("p", sources=[made], destinations=[Destination("out", log.Destination())])
"""


PROGRAM = """
from pathlib import Path
import conduit_connectors.memory  # so that what is left to load of a good file takes no time worth mentioning
from conduit_py.config.definitions import Definitions

whole = Definitions(Path("."), load_seconds=5).read().whole
print([each.id for each in whole.pipelines], *whole.problems)
"""


def test_a_file_whose_code_does_not_end_is_left_behind_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "a_stuck.py").write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "good.py").write_text(GOOD)

    # In a process of its own: the code that is left behind keeps its folder on the path of modules.
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert ran.stdout == (
        "['p'] a_stuck.py: did not define its pipelines within 5 s, and its code still runs "
        "(do what takes time in the open() of a connector or processor)\n"
    )
