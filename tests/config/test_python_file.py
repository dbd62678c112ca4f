"""Loading pipelines from Python files: what is found, what is imported, what each problem says."""

import sys
from pathlib import Path

import pytest

from conduit_py.config import python_file
from conduit_py.config.load import load_file
from conduit_py.config.python_file import FileInvalid, choose, load_pipelines
from conduit_py.errors import EnvironmentUnfit, Problem

EMPTY = 'from conduit_py import Pipeline\n{name} = Pipeline("{id}", sources=[], destinations=[])\n'


def written(folder: Path, text: str, name: str = "orders.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    return file


def problem_of(file: Path) -> Problem:
    with pytest.raises(FileInvalid) as raised:
        load_pipelines(file)
    (problem,) = raised.value.problems
    return problem


def test_all_pipelines_at_the_top_level_are_found_in_order(tmp_path: Path) -> None:
    text = EMPTY.format(name="z", id="first") + EMPTY.format(name="a", id="second") + "again = z\n"

    assert [pipeline.id for pipeline in load_pipelines(written(tmp_path, text))] == ["first", "second"]


def test_an_edit_is_seen_at_once_even_within_the_same_second(tmp_path: Path) -> None:
    file = written(tmp_path, EMPTY.format(name="p", id="one"))
    load_pipelines(file)
    written(tmp_path, EMPTY.format(name="p", id="two"))

    assert [pipeline.id for pipeline in load_pipelines(file)] == ["two"]


def test_a_file_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "flows", "beside", "name.txt")
    text = (
        "from pathlib import Path\nfrom conduit_py import Pipeline\n"
        "p = Pipeline(Path(__file__).with_name('name.txt').read_text(), sources=[], destinations=[])\n"
        "p.description = __file__\n"
    )
    written(tmp_path / "flows", text)
    monkeypatch.chdir(tmp_path)
    (pipeline,) = load_pipelines(Path("flows/orders.py"))

    assert pipeline.id == "beside"
    assert pipeline.description == str(tmp_path / "flows" / "orders.py")  # type: ignore[attr-defined]


def test_a_module_beside_the_file_can_be_imported_and_also_later(tmp_path: Path) -> None:
    written(tmp_path, "ID = 'from-sibling'\n", "beside_orders.py")
    written(tmp_path, "LATE = 'late'\n", "beside_late.py")
    text = (
        "from beside_orders import ID\nfrom conduit_py import Pipeline\n"
        "p = Pipeline(ID, sources=[], destinations=[])\n"
        "def late():\n    from beside_late import LATE\n    return LATE\np.description = late\n"
    )
    (pipeline,) = load_pipelines(written(tmp_path, text))

    assert pipeline.id == "from-sibling"
    assert pipeline.description() == "late"  # type: ignore[attr-defined]


def test_a_module_beside_the_file_never_replaces_the_standard_librarys(tmp_path: Path) -> None:
    written(tmp_path, "raise RuntimeError('the wrong one')\n", "colorsys.py")
    text = "import colorsys\n" + EMPTY.format(name="p", id="x")
    sys.modules.pop("colorsys", None)

    assert [pipeline.id for pipeline in load_pipelines(written(tmp_path, text, "queue.py"))] == ["x"]
    assert sys.modules["colorsys"].__file__ != str(tmp_path / "colorsys.py")


def test_files_in_two_folders_each_get_their_own_module_of_one_name(tmp_path: Path) -> None:
    text = (
        "from lookup_of_two import ID\nfrom conduit_py import Pipeline\np = Pipeline(ID, sources=[], destinations=[])\n"
    )
    files = []
    for folder in ("a", "b"):
        written(tmp_path / folder, f"ID = 'in-{folder}'\n", "lookup_of_two.py")
        files.append(written(tmp_path / folder, text))

    assert [load_pipelines(file)[0].id for file in (*files, *files)] == ["in-a", "in-b", "in-a", "in-b"]


def test_loading_changes_nothing_but_the_end_of_the_module_path(tmp_path: Path) -> None:
    # At the end there may be folders of files that other tests have loaded.
    others = [entry for entry in sys.path if entry not in python_file._directories]
    file = written(tmp_path, EMPTY.format(name="p", id="x"))
    load_pipelines(file)
    load_pipelines(file)

    assert sys.path == [*others, *python_file._directories]
    assert python_file._directories[0] == str(tmp_path)


def test_dataclasses_work_in_the_file(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Order:\n    id: int\n" + EMPTY.format(name="p", id="x")
    )

    assert len(load_pipelines(written(tmp_path, text))) == 1


def test_a_missing_file_suggests_the_one_that_is_there(tmp_path: Path) -> None:
    written(tmp_path, "")
    problem = problem_of(tmp_path / "order.py")

    assert problem.message == "there is no such file"
    assert problem.suggestion == "did you mean 'orders.py'?"


def test_a_folder_suggests_a_file_in_it(tmp_path: Path) -> None:
    written(tmp_path, "")
    problem = problem_of(tmp_path)

    assert problem.message == "is a folder, not a Python file"
    assert problem.suggestion == f"name a file in it, such as {tmp_path / 'orders.py'}"


def test_a_yaml_file_is_named_for_what_it_is(tmp_path: Path) -> None:
    problem = problem_of(written(tmp_path, "version: 2.2\n", "orders.yaml"))

    assert problem.message == "is a .yaml file, not a Python file"


def test_a_syntax_error_gives_line_and_text(tmp_path: Path) -> None:
    file = written(tmp_path, "x = 1\npipeline = Pipeline(\n")
    problem = problem_of(file)

    assert (problem.file, problem.line) == (str(file), 2)
    assert problem.message == "'(' was never closed: pipeline = Pipeline("


def test_a_syntax_error_in_a_module_beside_the_file_names_that_module(tmp_path: Path) -> None:
    sibling = written(tmp_path, "\n\nx = = 1\n", "beside_broken.py")
    problem = problem_of(written(tmp_path, "import beside_broken\n"))

    assert (problem.file, problem.line) == (str(sibling), 3)
    assert problem.message == "invalid syntax: x = = 1"


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfe\x00x = 1", b"caf\xe9 = 1\n", b"\x7fELF"])
def test_what_is_not_python_is_one_problem(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "orders.py"
    file.write_bytes(content)

    assert problem_of(file).message


def test_an_exception_names_its_type_and_the_users_line(tmp_path: Path) -> None:
    text = "import json\n\ndef read():\n    return json.loads('{')\n\nread()\n"
    file = written(tmp_path, text)
    problem = problem_of(file)

    assert (problem.file, problem.line) == (str(file), 4)
    assert problem.message.startswith("JSONDecodeError: Expecting property name")


def test_leaving_while_loading_is_a_problem_not_an_exit(tmp_path: Path) -> None:
    problem = problem_of(written(tmp_path, "import sys\nsys.exit(0)\n"))

    assert (problem.line, problem.message) == (2, "calls sys.exit() while it loads")


def test_a_missing_package_is_the_environments_fault(tmp_path: Path) -> None:
    file = written(tmp_path, "x = 1\nimport no_such_package_anywhere\n")
    with pytest.raises(EnvironmentUnfit) as raised:
        load_pipelines(file)

    assert raised.value.message == (
        f"{file}:2: imports 'no_such_package_anywhere', which is neither installed nor next to the file"
    )


def test_a_wrong_name_in_a_package_is_the_files_fault(tmp_path: Path) -> None:
    problem = problem_of(written(tmp_path, "from conduit_py import Pipelin\n"))

    assert problem.line == 1
    assert problem.message.startswith("ImportError: cannot import name 'Pipelin'")


def test_a_sibling_hidden_by_an_installed_module_is_explained(tmp_path: Path) -> None:
    written(tmp_path, "table = {}\n", "colorsys.py")
    problem = problem_of(written(tmp_path, "from colorsys import table\n"))

    assert problem.suggestion == (
        "the colorsys beside the file is not the one imported: rename it, the installed one comes first"
    )


def test_a_failed_load_leaves_no_module_behind(tmp_path: Path) -> None:
    before = set(sys.modules)
    problem_of(written(tmp_path, "raise ValueError('no')\n"))

    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("x = 1\n", "`from conduit_py import Pipeline` and give one a name"),
        ("from conduit_py import Pipeline\ndef make(): pass\n", "outside of any function"),
        (
            "from conduit_py import Pipeline\nall = [Pipeline('a', sources=[], destinations=[])]\n",
            "all holds some, but each needs a name of its own",
        ),
    ],
)
def test_a_file_without_a_pipeline_is_refused_with_what_to_write(tmp_path: Path, text: str, suggestion: str) -> None:
    problem = problem_of(written(tmp_path, text))

    assert problem.message == "there is no pipeline at the top level of this file"
    assert suggestion in str(problem.suggestion)


def test_two_pipelines_with_one_id_are_refused_in_the_words_used_for_a_folder(tmp_path: Path) -> None:
    file = written(
        tmp_path, "".join(EMPTY.format(name=name, id=id) for name, id in (("a", "x"), ("b", "x"), ("c", "y")))
    )
    loaded = load_file(file)

    assert [each.id for each in loaded.pipelines] == ["y"]
    assert [(problem.file, problem.line, problem.message) for problem in loaded.problems] == [
        (str(file), line, f"the id 'x' is also used in {file}:{other}, so none of them is loaded")
        for line, other in ((2, 4), (4, 2))
    ]


def test_one_pipeline_can_be_chosen_by_its_id(tmp_path: Path) -> None:
    file = written(tmp_path, EMPTY.format(name="a", id="first") + EMPTY.format(name="b", id="second"))
    pipelines = load_pipelines(file)

    assert [pipeline.id for pipeline in choose(file, pipelines, "second")] == ["second"]
    assert choose(file, pipelines, None) == pipelines


def test_an_unknown_id_suggests_the_one_that_is_there(tmp_path: Path) -> None:
    file = written(tmp_path, EMPTY.format(name="a", id="first"))
    with pytest.raises(FileInvalid) as raised:
        choose(file, load_pipelines(file), "frist")

    (problem,) = raised.value.problems
    assert (problem.message, problem.suggestion) == ("has no pipeline 'frist'", "did you mean 'first'?")


@pytest.mark.parametrize(
    ("text", "message", "suggestion"),
    [
        (
            "from conduit_py import processor\n@procesor\ndef f(r): ...",
            "NameError: name 'procesor' is not defined",
            "processor",
        ),
        ("def f():\n    orders = 1\n    return ordres\nf()", "NameError: name 'ordres' is not defined", "orders"),
        ("pritn(1)", "NameError: name 'pritn' is not defined", "print"),
        (
            "import conduit_py\nconduit_py.Pipelin()",
            "AttributeError: module 'conduit_py' has no attribute 'Pipelin'",
            "Pipeline",
        ),
        ("xyzzy_quux", "NameError: name 'xyzzy_quux' is not defined", None),
    ],
)
def test_a_name_that_is_not_there_suggests_one_that_is(
    tmp_path: Path, text: str, message: str, suggestion: str | None
) -> None:
    with pytest.raises(FileInvalid) as raised:
        load_pipelines(written(tmp_path, text))

    (problem,) = raised.value.problems
    assert (problem.message, problem.suggestion) == (message, suggestion and f"did you mean {suggestion!r}?")
