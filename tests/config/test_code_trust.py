"""Code that anybody could have changed is not executed: not through a link, not as a helper, not by run or check."""

from pathlib import Path

import pytest
from warm_python import run_command

from conduit_py.config.load import load_file, load_folder
from conduit_py.config.python_file import FileInvalid

PIPELINE = """
from conduit_connectors import memory
from conduit_py import Pipeline
p = Pipeline("p", sources={"in": memory.Source(records=[{}])}, destinations={"out": memory.Destination(into=[])})
"""
MARK = "from pathlib import Path\nPath(__file__).resolve().with_name('ran').touch()\n"
ANYBODY = "can be written to by anybody, and pipelines are code"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "flows"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that anybody may write to."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    return shared


def problems(file: Path) -> list[str]:
    try:
        return [f"{problem.message} ({problem.suggestion})" for problem in load_file(file).problems]
    except FileInvalid as invalid:
        return [f"{problem.message} ({problem.suggestion})" for problem in invalid.problems]


@pytest.mark.parametrize("suffix", [".py", ".yaml"])
def test_a_file_that_anybody_may_write_to_is_refused(folder: Path, suffix: str) -> None:
    file = folder / f"a{suffix}"
    file.write_text(MARK)
    file.chmod(0o666)

    assert problems(file) == [f"the file {ANYBODY} (chmod o-w {file})"]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["linked.py", "twice.py"])
def test_a_link_to_where_anybody_may_write_is_refused(folder: Path, shared: Path, name: str) -> None:
    (shared / "code.py").write_text(MARK + PIPELINE)
    (folder / "linked.py").symlink_to(shared / "code.py")
    (folder / "twice.py").symlink_to("linked.py")

    assert problems(folder / name) == [f"the folder {shared} {ANYBODY} (chmod o-w {shared})"]
    assert [problem.message for problem in load_folder(folder).problems] == [f"the folder {shared} {ANYBODY}"] * 2
    assert not (shared / "ran").exists()


def test_a_link_that_anybody_may_exchange_is_refused(folder: Path, shared: Path) -> None:
    (folder / "code.py").write_text(PIPELINE)
    (shared / "middle.py").symlink_to(folder / "code.py")
    (folder / "linked.py").symlink_to(shared / "middle.py")

    assert problems(folder / "linked.py") == [f"the folder {shared} {ANYBODY} (chmod o-w {shared})"]


def test_a_folder_above_that_anybody_may_write_to_is_refused(shared: Path) -> None:
    (shared / "mine").mkdir(mode=0o755)
    (shared / "mine" / "a.py").write_text(PIPELINE)

    assert problems(shared / "mine" / "a.py") == [f"the folder {shared} {ANYBODY} (chmod o-w {shared})"]


def test_a_helper_that_anybody_may_write_to_is_not_imported(folder: Path) -> None:
    (folder / "a.py").write_text("import trust_helper\n" + PIPELINE)
    helper = folder / "trust_helper.py"
    helper.write_text(MARK)
    helper.chmod(0o646)

    assert problems(folder / "a.py") == [f"{helper} is not imported: the file {ANYBODY} (chmod o-w {helper})"]
    assert not (folder / "ran").exists()


def test_a_package_beside_a_pipeline_is_checked_module_by_module(folder: Path) -> None:
    (folder / "a.py").write_text("import trust_package.inner\n" + PIPELINE)
    package = folder / "trust_package"
    package.mkdir(mode=0o755)
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(MARK)
    (package / "inner.py").chmod(0o666)

    (problem,) = problems(folder / "a.py")
    assert problem.startswith(f"{package / 'inner.py'} is not imported")
    assert not (package / "ran").exists()


def test_a_helper_through_a_link_is_checked_where_it_is(folder: Path, shared: Path) -> None:
    (folder / "a.py").write_text("import trust_linked\n" + PIPELINE)
    (shared / "code.py").write_text(MARK)
    (folder / "trust_linked.py").symlink_to(shared / "code.py")

    (problem,) = problems(folder / "a.py")
    assert "trust_linked.py is not imported" in problem
    assert not (shared / "ran").exists()


def test_a_helper_of_ones_own_is_imported_also_later(folder: Path) -> None:
    (folder / "a.py").write_text("import trust_own\n" + PIPELINE)
    (folder / "trust_own.py").write_text(MARK)

    assert problems(folder / "a.py") == []
    assert (folder / "ran").exists()


@pytest.mark.parametrize("command", ["run", "check"])
def test_commands_refuse_it_too(folder: Path, command: str) -> None:
    file = folder / "a.py"
    file.write_text(MARK + PIPELINE)
    file.chmod(0o666)

    ran = run_command(command, "a.py", cwd=folder)

    assert ran.returncode == 2
    assert ANYBODY in ran.stdout + ran.stderr
    assert not (folder / "ran").exists()


def test_a_file_beside_a_pipeline_hides_no_installed_module(folder: Path) -> None:
    (folder / "a.py").write_text("import trio\nassert trio.run\n" + PIPELINE)
    (folder / "trio.py").write_text("raise RuntimeError('hidden')\n")
    for command in ("check", "run"):
        ran = run_command(command, "a.py", cwd=folder)
        assert ran.returncode == 0, ran.stderr
