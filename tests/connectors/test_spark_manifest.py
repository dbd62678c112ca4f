"""Manifests of a folder of batches: what a crash or a power cut leaves is finished or taken back."""

from pathlib import Path

import pytest
from conduit_connectors.spark import Destination
from conduit_connectors.spark.folder import LocalFolder
from conduit_connectors.spark.manifest import Manifests, batch_folder, stage_folder

from conduit_py.errors import FatalError


def opened(root: Path) -> Manifests:
    manifests = Manifests(LocalFolder(root), remember=100)
    manifests.recover()
    return manifests


def stage(root: Path, name: str) -> str:
    path = root / stage_folder(name)
    path.mkdir(parents=True)
    (path / "part-0").write_text(name)
    return stage_folder(name)


def shown(root: Path) -> dict[str, str]:
    return {path.name: (path / "part-0").read_text() for path in root.glob("batch=*")}


def test_what_is_committed_is_shown_by_the_next_run_and_all_else_removed(tmp_path: Path) -> None:
    manifests = opened(tmp_path)
    stage(tmp_path, "not committed")
    LocalFolder(tmp_path).move(
        stage(tmp_path, "first"), batch_folder(manifests.commit(stage_folder("first"), [{"p": [b"1"]}]))
    )
    manifests.commit(stage(tmp_path, "second"), [{"p": [b"2"]}])

    again = opened(tmp_path)

    assert shown(tmp_path) == {batch_folder(0): "first", batch_folder(1): "second"}
    assert [*(tmp_path / "_conduit/plain").iterdir()] == []
    assert (again.next, len(again.written)) == (2, 2)


def test_a_manifest_that_outlived_a_power_cut_without_its_names_does_not_count(tmp_path: Path) -> None:
    """Nothing of such a batch was acked, so it comes again; without names it would not be recognised."""
    manifests = opened(tmp_path)
    manifests.commit(stage(tmp_path, "first"), [{"p": [b"1"]}])
    (tmp_path / "_conduit/000000000000.names").unlink()

    again = opened(tmp_path)

    assert (again.next, len(again.written), shown(tmp_path)) == (0, 0, {})
    LocalFolder(tmp_path).move(
        stage(tmp_path, "again"), batch_folder(again.commit(stage_folder("again"), [{"p": [b"1"]}]))
    )
    assert shown(tmp_path) == {batch_folder(0): "again"}


def test_a_folder_of_another_exactly_once_pipeline_is_refused(tmp_path: Path) -> None:
    def begun(owner: str) -> None:
        destination = Destination(path=str(tmp_path)).fresh()
        destination._folder = LocalFolder(tmp_path)
        destination.begin(owner, 1, [])

    begun("one")
    begun("one")
    with pytest.raises(FatalError, match="written by another exactly-once pipeline"):
        begun("two")
