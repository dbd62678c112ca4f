"""The wheel and the sdist: what users install has all three packages, their types and the command."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from conduit_py import __version__
from conduit_py.server.web import TYPES

ROOT = Path(__file__).parent.parent


def test_a_built_wheel_installs_and_runs_away_from_the_source(tmp_path: Path) -> None:
    """The wheel is built from the sdist, so an sdist that lacks a file would fail here."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("conduit_dataflow-*.whl")
    [sdist] = tmp_path.glob("conduit_dataflow-*.tar.gz")

    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "uv.lock", "PKG-INFO"} <= packed
    assert {"tests/test_wheel.py", "deploy/container/Dockerfile"} <= packed
    assert not any(name.startswith((".ci", ".venv", ".git/")) or "node_modules" in name for name in packed)

    names = zipfile.ZipFile(wheel).namelist()
    for package in ("conduit_py", "conduit_connectors", "conduit_processors"):
        assert f"{package}/py.typed" in names
    assert {f"conduit_py/server/page/{name}" for name in TYPES} <= set(names)
    assert not any(name.startswith(("tests", "connectors/", "processors/", "benchmarks", "web")) for name in names)

    for built in (wheel, sdist):
        use_installed(built, tmp_path / f"installed-{built.name}")


def use_installed(package: Path, folder: Path) -> None:
    """Install a package into a folder of its own, and use the modules and the command from there."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    install = [sys.executable, "-m", "pip", "install", *options, str(package)]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    program = (
        "import conduit_py, conduit_connectors.file, conduit_processors.field, sys;"
        "assert conduit_py.__file__.startswith(sys.argv[1]), conduit_py.__file__;"
        "from conduit_py.sdk.registry import find; find('source', 'file'); find('processor', 'field.set')"
    )
    env = {"PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=folder.parent, env=env, timeout=300)
    command = [sys.executable, "-m", "conduit_py.cli.main", "--version"]
    shown = subprocess.run(command, check=True, cwd=folder.parent, env=env, capture_output=True, text=True, timeout=300)
    assert shown.stdout.strip() == f"conduit-py {__version__}"
