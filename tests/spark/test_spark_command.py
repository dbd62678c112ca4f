"""`conduit-py run --engine spark` where something is missing: what to do is said, and nothing is started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

FILE = """
from conduit_py import DeadLetters, Destination, Pipeline, Source
from conduit_connectors import file
pipeline = Pipeline(
    "copy",
    sources=[Source("in", file.Source(path="in.txt"))],
    destinations=[Destination("out", file.Destination(path="out.txt"))],
    dead_letters=DeadLetters({letters}),
)
"""
WITHOUT_PYSPARK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
from conduit_py.cli.main import main
sys.argv = ["conduit-py", *sys.argv[1:]]
main()
"""


def run(folder: Path, *options: str, program: str = "", letters: str = "", **environment: str) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    (folder / "plain.py").write_text(FILE.format(letters=letters))
    (folder / "in.txt").write_text("one\n")
    start = ["-c", program] if program else ["-m", "conduit_py.cli.main"]
    ran = subprocess.run(
        [sys.executable, *start, "run", "plain.py", *options],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return ran.returncode, ran.stderr


def test_a_master_without_the_engine_is_a_mistake(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--master", "local[2]")

    assert code == 3
    assert "--master names a Spark, which only --engine spark uses" in said


def test_without_pyspark_it_says_what_to_install(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", program=WITHOUT_PYSPARK)

    assert code == 3
    assert "needs pyspark, not installed here" in said
    assert "pip install 'conduit-py[spark]'" in said


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", JAVA_HOME="", PATH=str(tmp_path))

    assert code == 1
    assert "Spark runs on Java, and there is none on this machine" in said
    assert "apt-get install openjdk-17-jre-headless" in said


def test_a_master_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        code, said = run(tmp_path, "--engine", "spark", "--master", f"spark://{address}")

    assert code == 1
    assert f"no Spark master answers ({address}: Connection refused)" in said


def test_what_cannot_run_on_spark_is_a_mistake_in_the_file(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "spark", letters='"journal"')

    assert code == 2
    assert "plain.py:8: dead_letters.handler: letters that are kept here would be sent again" in said
    assert "or run it without --engine spark" in said
    assert not (tmp_path / "out.txt").exists()


def test_pyspark_is_imported_only_for_its_engine() -> None:
    code = "import sys, conduit_py.cli.main, conduit_py.cli.run; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert ran.stdout == "False\n"
