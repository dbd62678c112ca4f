"""The page "Load a lake or DuckDB" is true: its pipelines run, and DuckDB finds the same rows in both tables."""

import re
import runpy
import sys
from pathlib import Path

import pytest

import conduit_py

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "load-a-lake.md"


def test_both_tables_have_the_rows_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(code)
    found = runpy.run_path("lake.py")
    for name in ("warehouse", "lake"):
        outcome = conduit_py.run(found[name], state=tmp_path / "state")
        assert outcome.error is None, outcome
    runpy.run_path("compare.py")
    sys.modules.pop("lake", None)

    assert capsys.readouterr().out == "[(10000,)] []\n"
