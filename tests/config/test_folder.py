"""Folders of pipelines: what loads does, whatever is wrong with the rest; and who may write to them."""

import os
from pathlib import Path

import pytest

from conduit_py.config.definitions import Definitions
from conduit_py.config.load import load_file, load_folder
from conduit_py.config.loaded import Loaded
from conduit_py.config.python_file import FileInvalid
from conduit_py.errors import EnvironmentUnfit

YAML = """\
version: 2.2
pipelines:
  - id: {id}
    status: {status}
    connectors:
      - {{id: in, type: source, plugin: generator}}
      - {{id: out, type: destination, plugin: log}}
"""
PYTHON = "from conduit_py import Pipeline\n\n{name} = Pipeline('{id}', sources=[], destinations=[])\n"


def yaml(id: str, status: str = "running") -> str:
    return YAML.format(id=id, status=status)


def python(id: str) -> str:
    return PYTHON.format(name=id.replace("-", "_"), id=id)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where anybody may read and only we may write."""
    monkeypatch.syspath_prepend(tmp_path / "nothing")  # so that sys.path is put back afterwards
    folder = tmp_path / "pipelines"
    folder.mkdir(mode=0o755)
    return folder


def said(loaded: Loaded, folder: Path) -> list[str]:
    lines = [*map(str, loaded.problems), *(f"warning: {warning}" for warning in loaded.warnings)]
    return [line.replace(f"{folder}/", "").replace(str(folder), "FOLDER") for line in lines]


def test_python_and_yaml_are_loaded_in_the_order_of_their_names(folder: Path) -> None:
    (folder / "c.py").write_text(python("third"))
    (folder / "a.yml").write_text(yaml("first", "stopped"))
    (folder / "b.yaml").write_text(yaml("second") + "---\n" + yaml("second-b"))
    loaded = load_folder(folder)

    assert said(loaded, folder) == []
    assert [(each.id, each.desired, each.place.replace(f"{folder}/", "")) for each in loaded.pipelines] == [
        ("first", "stopped", "a.yml:3"),
        ("second", "running", "b.yaml:3"),
        ("second-b", "running", "b.yaml:11"),
        ("third", "running", "c.py:3"),
    ]


def test_only_pipeline_files_directly_in_the_folder_are_read(folder: Path) -> None:
    for name in ("notes.txt", ".hidden.yaml", "_module.py", "old.yaml.bak", "below/deep.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise [[[")
    (folder / "folder.yaml").mkdir()
    (folder / "a.py").write_text(python("only"))
    loaded = load_folder(folder)

    assert [each.id for each in loaded.pipelines] == ["only"]
    assert loaded._replace(pipelines=()) == Loaded()


def test_a_bad_file_never_stops_the_others(folder: Path) -> None:
    (folder / "a.py").write_text("1 +\n")
    (folder / "b.yaml").write_text("a: [\n")
    (folder / "c.py").write_text("import no_such_package_anywhere\n")
    (folder / "d.py").write_text("raise SystemExit\n")
    (folder / "e.py").write_text("table = {}\n")
    (folder / "f.yaml").write_text("")
    (folder / "g.yaml").symlink_to(folder / "gone.yaml")
    (folder / "h.yaml").write_text(yaml("works"))
    loaded = load_folder(folder)

    assert [pipeline.id for pipeline in loaded.pipelines] == ["works"]
    assert said(loaded, folder) == [
        "a.py:1: invalid syntax: 1 +",
        "b.yaml:2: not valid YAML: expected the node content, but found '<stream end>'",
        "c.py: c.py:1: imports 'no_such_package_anywhere', which is neither installed nor next to the file "
        f"({loaded.problems[2].suggestion})",
        "d.py:1: calls sys.exit() while it loads",
        "g.yaml: there is no such file or folder",
        "warning: e.py: there is no pipeline at the top level of this file "
        "(begin its name with _ if it is only imported)",
        "warning: f.yaml: there is no pipeline in this file",
    ]


def test_pipelines_that_share_an_id_are_all_refused_with_all_places_named(folder: Path) -> None:
    (folder / "a.yaml").write_text(yaml("same") + "---\n" + yaml("other"))
    (folder / "b.py").write_text(python("same"))
    (folder / "c.yaml").write_text(yaml("same"))
    loaded = load_folder(folder)

    assert [pipeline.id for pipeline in loaded.pipelines] == ["other"]
    assert said(loaded, folder) == [
        f"{place}: id: the id 'same' is also used in {others}, so none of them is loaded "
        "(positions are kept by id, so each needs its own)"
        for place, others in (
            ("a.yaml:3", "b.py:3, c.yaml:3"),
            ("b.py:3", "a.yaml:3, c.yaml:3"),
            ("c.yaml:3", "a.yaml:3, b.py:3"),
        )
    ]


def test_a_single_file_works_too(folder: Path) -> None:
    (folder / "a.yaml").write_text(yaml("first"))
    (folder / "b.py").write_text(python("second"))

    assert [pipeline.id for pipeline in load_folder(folder / "a.yaml").pipelines] == ["first"]
    assert [pipeline.id for pipeline in load_folder(folder / "b.py").pipelines] == ["second"]


def test_what_is_not_there_is_a_problem(folder: Path) -> None:
    assert said(load_folder(folder / "gone"), folder) == ["gone: there is no such file or folder"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_anybody_may_write_to_is_refused(folder: Path, mode: int) -> None:
    (folder / "a.yaml").write_text(yaml("a"))
    folder.chmod(mode)
    loaded = load_folder(folder)

    assert loaded.pipelines == ()
    assert said(loaded, folder) == [
        "FOLDER: the folder can be written to by anybody, and pipelines are code (chmod o-w FOLDER)"
    ]


def test_a_file_that_anybody_may_write_to_is_refused_and_not_run(folder: Path) -> None:
    (folder / "a.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    (folder / "a.py").chmod(0o666)
    (folder / "b.yaml").write_text(yaml("b"))
    loaded = load_folder(folder)

    assert [pipeline.id for pipeline in loaded.pipelines] == ["b"]
    assert said(loaded, folder) == [
        "a.py: the file can be written to by anybody, and pipelines are code (chmod o-w a.py)"
    ]
    assert not (folder / "ran").exists()


def test_a_single_file_in_a_folder_that_anybody_may_write_to_is_refused_unless_it_is_protected(folder: Path) -> None:
    (folder / "a.yaml").write_text(yaml("a"))
    folder.chmod(0o777)
    refused = load_folder(folder / "a.yaml")
    folder.chmod(0o1777)
    protected = load_folder(folder / "a.yaml")

    assert said(refused, folder) == [
        "a.yaml: its folder can be written to by anybody, and pipelines are code (chmod o-w FOLDER)"
    ]
    assert [pipeline.id for pipeline in protected.pipelines] == ["a"]


@pytest.mark.parametrize("name", ["pipe.py", "pipe.yaml"])
def test_a_pipe_is_refused_and_nobody_waits_for_its_writer(folder: Path, name: str) -> None:
    os.mkfifo(folder / name)
    (folder / "z.yaml").write_text(yaml("sound"))
    loaded = Definitions(folder).read().whole

    assert said(loaded, folder) == [f"{name}: is not a regular file (put the pipeline into a file of its own)"]
    assert [each.id for each in loaded.pipelines] == ["sound"]


def test_a_file_is_loaded_by_its_suffix(folder: Path) -> None:
    (folder / "a.YAML").write_text(yaml("a") + "---\n" + yaml("a"))
    (folder / "b.py").write_text(python("b"))
    (folder / "c.py").write_text("import no_such_package_anywhere\n")

    assert [pipeline.id for pipeline in load_file(folder / "b.py").pipelines] == ["b"]
    assert [problem.line for problem in load_file(folder / "a.YAML").problems] == [3, 11]
    with pytest.raises(EnvironmentUnfit):
        load_file(folder / "c.py")
    with pytest.raises(FileInvalid):
        load_file(folder)


def test_a_folder_without_a_pipeline_says_what_was_searched_and_where_files_are(folder: Path) -> None:
    (folder / "setup.py").write_text("")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_orders.py").write_text("")
    searched = "it is searched for *.py, *.yaml and *.yml, its subfolders are not"
    elsewhere = load_folder(folder).warnings[-1]
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "orders.py").write_text(python("orders"))
    beside = said(load_folder(folder), folder)[-1]

    assert (elsewhere.message, elsewhere.suggestion) == (
        "there is no pipeline in this folder",
        f"{searched}; did you mean {folder / 'tests'}?",
    )
    assert beside == f"warning: FOLDER: there is no pipeline in this folder ({searched}; did you mean pipelines?)"
    assert said(Definitions(folder).read().whole, folder)[-1] == beside
