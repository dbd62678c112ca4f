"""What is published, what it is locked to, and the files of the project around it, in one form."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from licences import PAGE, licence_of, page_components, problems_in
from packaging.requirements import Requirement
from packaging.version import Version

from conduit_py import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
CHANGES = (ROOT / "CHANGELOG.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(texts: list[Any]) -> set[tuple[str, str, frozenset[str]]]:
    """Requirements as a lock file has them: without the order in which they are written."""
    parsed = [Requirement(text) for text in texts if isinstance(text, str)]
    return {(normal(each.name), str(each.specifier), frozenset(map(normal, each.extras))) for each in parsed}


def locked(entries: list[dict[str, Any]]) -> set[tuple[str, str, frozenset[str]]]:
    return {
        (each["name"], str(Requirement(f"x{each.get('specifier', '')}").specifier), frozenset(each.get("extras", [])))
        for each in entries
    }


class TestDependencies:
    def test_users_see_no_extra_for_development_and_one_for_everything(self) -> None:
        extras = PROJECT["project"]["optional-dependencies"]
        everything = {extra for text in extras["all"] for extra in Requirement(text).extras}

        assert not {"dev", "bench", "lint", "test"} & set(extras)
        assert everything == set(extras) - {"all", "testing"}

    def test_the_lock_file_is_that_of_pyproject(self) -> None:
        [ours] = [each for each in LOCK["package"] if each["name"] == "conduit-dataflow"]
        base = [each for each in ours["metadata"]["requires-dist"] if "extra ==" not in each.get("marker", "")]
        groups = {
            name: [each for each in entries if isinstance(each, str)]
            for name, entries in PROJECT["dependency-groups"].items()
        }

        assert locked(base) == required(PROJECT["project"]["dependencies"])
        assert set(ours["metadata"]["requires-dev"]) == set(groups)
        for name, texts in groups.items():
            assert required(texts) <= locked(ours["metadata"]["requires-dev"][name]), name

    def test_every_locked_file_has_a_hash(self) -> None:
        files = [
            file
            for package in LOCK["package"]
            if package["name"] != "conduit-dataflow"
            for file in (*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else []))
        ]

        assert len(files) > 1000
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]) for file in files)

    def test_pip_installs_what_is_locked(self) -> None:
        pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        versions = {(each["name"], each["version"]) for each in LOCK["package"] if each["name"] != "conduit-dataflow"}

        assert {(normal(name), version) for name, version in pins} == versions

    def test_nothing_asks_for_the_predecessor_of_httpx2(self) -> None:
        assert "httpx" not in {each["name"] for each in LOCK["package"]}


class TestChangelog:
    def test_versions_have_one_form_and_go_back_in_time(self) -> None:
        first, *rest = re.findall(r"^## (.*)$", CHANGES, re.MULTILINE)
        released = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})", heading) for heading in rest]

        assert first == "Unreleased"
        assert all(released)
        pairs = [(Version(each[1]), each[2]) for each in released if each]
        assert pairs == sorted(pairs, reverse=True)

    def test_a_version_has_the_known_sections_each_once(self) -> None:
        for part in re.split(r"^## .*$", CHANGES, flags=re.MULTILINE)[1:]:
            sections = re.findall(r"^### (.*)$", part, re.MULTILINE)
            assert len(sections) == len(set(sections))
            assert set(sections) <= {"Added", "Changed", "Deprecated", "Fixed", "Removed", "Security"}

    @pytest.mark.skipif("RELEASE_TAG" not in os.environ, reason="only a release has a tag")
    def test_a_tag_is_that_of_the_version_and_has_its_changes(self) -> None:
        assert os.environ["RELEASE_TAG"] == f"v{__version__}"
        assert re.search(rf"^## {re.escape(__version__)} - ", CHANGES, re.MULTILINE)


class TestProject:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_a_workflow_may_no_more_than_it_says_and_ends(self, path: Path) -> None:
        workflow = yaml.safe_load(path.read_text())

        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] <= 90, name
            for step in job["steps"]:
                # A text from outside that is pasted into a shell would be run: it comes by the environment.
                assert "${{" not in step.get("run", ""), name

    def test_only_what_was_tested_is_published(self) -> None:
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]

        assert jobs["publish"]["needs"] == "test"
        assert jobs["test"]["needs"] == "build"
        assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]

    def test_make_has_every_target_that_the_workflows_call(self) -> None:
        texts = [path.read_text() for path in WORKFLOWS]
        targets = {target for text in texts for target in re.findall(r"\bmake ([\w./-]+)", text)}
        for target in targets:
            asked = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=300)
            assert asked.returncode == 0, asked.stderr

    def test_templates_and_hooks_can_be_read(self) -> None:
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
            template = yaml.safe_load(path.read_text())
            assert path.name == "config.yml" or {"name", "description", "body"} <= set(template)
        hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
        # A program of `.venv` that does not exist would fail only when somebody commits.
        assert {hook["entry"].split()[0] for hook in hooks} <= {
            ".venv/bin/ruff", ".venv/bin/lint-imports", ".venv/bin/pytest",
        }  # fmt: skip


def test_a_package_without_a_licence_or_with_a_reaching_one_is_found() -> None:
    sbom = json.loads("""{"components": [
        {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "b", "version": "2"},
        {"name": "c", "version": "3", "licenses": [{"expression": "GPL-3.0-only"}]},
        {"name": "d", "version": "4", "licenses": [{"license": {"name": "GNU LGPL v3"}}]}
    ]}""")

    assert problems_in(sbom) == ["b 2: no licence is stated", "c 3: GPL-3.0-only"]


def test_pages_that_name_the_version_name_this_one() -> None:
    install, kubernetes = (ROOT / "docs" / page for page in ("learn/install.md", "operate/kubernetes.md"))

    assert f"./conduit_dataflow-{__version__}-py3-none-any.whl" in install.read_text()
    assert f"Its tag is the version of the chart, `{__version__}`" in kubernetes.read_text()


def test_what_the_page_is_built_of_is_shipped_too() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    shipped = {path.removeprefix("node_modules/") for path, each in lock.items() if path and not each.get("dev")}
    components = page_components(PAGE.read_text())

    assert {each["name"] for each in components} == shipped
    assert {licence_of(each) for each in components} == {"MIT", "Apache-2.0"}
    assert problems_in({"components": components}) == []
