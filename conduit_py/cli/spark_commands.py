"""The commands `spark pack` and `spark clear`: what executors run Python with, and what they have left behind."""

import importlib.util
import json
import os
import re
import shlex
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trio
from cyclopts import App, Parameter, validators
from msgspec.structs import asdict

from conduit_py.cli.output import ExitCode, put, put_json, put_lines
from conduit_py.defaults import OUR_PACKAGES
from conduit_py.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from conduit_py.graph.node import Graph
    from conduit_py.sdk.destination import StageCleared

spark = App(name="spark", help="Prepare what a cluster of Spark needs, and clear what it has left.", sort_key=20)

ARCHIVES = (".tar.gz", ".tgz")
"""How the names of archives end that Spark unpacks whole: of others, as .tar, it forgets which files are programs."""
FOLDER = "environment"
"""The name under which executors find the unpacked archive."""
_OURS = "conduit-dataflow"
_NEEDED = f"{_OURS}[spark]"
_INSTALLERS = {"pip", "setuptools", "wheel"}
_LEFT_OUT = re.compile(r"(^|/)__pycache__/|^\.\./|^pyspark/(jars|data|examples)/")
"""Caches, scripts of the environment, and the jars of Spark: an executor runs in a Spark already."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@spark.command
def pack(
    *requirements: Annotated[
        str, Parameter(help="distributions to pack with all that they need, as pandas [default: the whole environment]")
    ],
    out: Annotated[Path, Parameter(help="the archive: .tar.gz or .tgz", show_default=True)] = Path(f"{FOLDER}.tar.gz"),
) -> int:
    """Pack the packages of this environment for executors, and print the settings with which they use them.

    conduit-py itself is always packed. Nodes need a Python of the same version, and nothing else of ours.
    """
    packed = list(_find_distributions([*requirements, _NEEDED]) if requirements else _whole_environment())
    write_archive(out, packed)
    put_lines(
        f"packed {len(packed)} distributions in {out}, {out.stat().st_size / 1e6:.0f} MB. Set in `conf`:\n"
        f'  "spark.archives": "{out.absolute()}#{FOLDER}"\n'
        f'  "spark.pyspark.python": "./{FOLDER}/bin/python"'
    )
    return ExitCode.OK


@spark.command
def clear(
    file: Annotated[Path, Parameter(help="Python file with pipelines at its top level, or Conduit's YAML")],
    /,
    *,
    pipeline: Annotated[str | None, Parameter(help="only the pipeline with this id")] = None,
    hours: Annotated[
        float, Parameter(help="how old it must be", show_default=True, validator=validators.Number(gte=0))
    ] = 168.0,
    gone: Annotated[
        str | None, Parameter(help="the id of a pipeline that never runs again: remove all that it has staged")
    ] = None,
    json: Annotated[bool, Parameter(help="answer in JSON on stdout")] = False,
) -> int:
    """Remove what tasks of Spark have staged at the destinations of a file, and no commit can name any more.

    Runs do that themselves; this is for pipelines that do not run again. What a next run may need is left.
    With --gone, what the last transaction of that pipeline committed and did not show is lost.
    """
    from conduit_py.cli.check import load_graphs

    found = trio.run(_clear_all, load_graphs(file, pipeline), hours * 3600, gone)
    if json:
        put_json({"destinations": [{"pipeline": each[0], "node": each[1], **asdict(each[2])} for each in found]})
    else:
        for id, node, cleared in found:
            put(f"{id}: {node}: removed {cleared.removed} files or tables, left {cleared.left} that may be needed")
        if not found:
            put("there is no destination that tasks stage")
    return ExitCode.OK


async def _clear_all(
    graphs: "Sequence[Graph]", seconds: float, gone: str | None
) -> "list[tuple[str, str, StageCleared]]":
    from conduit_py.sdk.destination import ManyWriterDestination
    from conduit_py.stream.plugin_calls import PluginCaller

    found = []
    for graph in graphs:
        for declared in graph.pipeline.destinations:
            if isinstance(declared.connector, ManyWriterDestination):
                calls = PluginCaller(declared.id, declared.connector.fresh())
                try:
                    found.append((graph.pipeline.id, declared.id, await calls("clear_staged", seconds, gone)))
                finally:
                    calls.close()
    return found


def write_archive(out: Path, packed: Iterable[Distribution]) -> None:
    """Write the archive whole or not at all: `packages/`, and `bin/python`, which runs Python with them."""
    if not out.name.endswith(ARCHIVES):
        raise EnvironmentUnfit(f"{out} is no archive that Spark unpacks", suggestion=f"end it in {', '.join(ARCHIVES)}")
    # Found before anything is written, so that an error leaves no file.
    files = {f"packages/{name}": path for each in packed for name, path in _files_of(each)}
    part = out.with_name(f".{out.name}.part")
    try:
        with tarfile.open(part, "w:gz", compresslevel=1) as archive:
            _add(archive, "bin/python", _launcher().encode(), 0o755)
            for name, path in sorted(files.items()):
                _add(archive, name, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentUnfit(f"{out} cannot be written: {error.strerror or error}") from error


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    # Without owners and times: the same packages make the same archive.
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, BytesIO(content))


def _launcher() -> str:
    """The program that executors start: not a virtual environment, which would need its Python at the same path."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The Python below a virtual environment, for nodes that are like this machine.
    own = shlex.quote(str(Path(getattr(sys, "_base_executable", sys.executable)).resolve()))
    return f"""#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
for python in {own} {version}; do
    if found=$(command -v -- "$python"); then
        PYTHONPATH="$here/packages${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1 exec "$found" "$@"
    fi
done
echo "this archive of conduit-py needs {version} on the PATH of every node" >&2
exit 127
"""


def _whole_environment() -> Iterator[Distribution]:
    seen = set(_INSTALLERS)
    for each in distributions():
        # The first one found is the one that is imported.
        if (name := _normal(each.name)) not in seen:
            seen.add(name)
            yield each


def _find_distributions(requirements: Iterable[str]) -> Iterator[Distribution]:
    """The distributions that these name, and all installed ones that they need, each once."""
    waiting = [(text, False) for text in requirements]
    seen: set[tuple[str, str]] = set()
    given: set[str] = set()
    while waiting:
        text, optional = waiting.pop()
        name, extras = _parse(text)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            # A marker may not hold here, as for another system: then it is not installed.
            if optional:
                continue
            raise EnvironmentUnfit(f"{name} is not installed here", suggestion=f"pip install {name}") from None
        if _normal(name) not in given:
            given.add(_normal(name))
            yield found
        for extra in ["", *extras]:
            if (_normal(name), extra) not in seen:
                seen.add((_normal(name), extra))
                waiting += [(each, True) for each in found.requires or () if _extra_of(each) == extra]


def _parse(requirement: str) -> tuple[str, list[str]]:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise EnvironmentUnfit(f"{requirement!r} is no distribution", suggestion="write it as name or name[extra]")
    return match[1], [_normal(each.strip()) for each in (match[2] or "").split(",") if each.strip()]


def _extra_of(requirement: str) -> str:
    found = _EXTRA.search(requirement.partition(";")[2])
    return _normal(found[1]) if found else ""


def _files_of(packed: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution that executors need, by their place in the archive."""
    if packed.files is None:
        raise EnvironmentUnfit(
            f"{packed.name} cannot be packed: it has no list of its files",
            suggestion=f"install it by pip: {packed.name}",
        )
    for file in packed.files:
        path = Path(str(packed.locate_file(file)))
        if not _LEFT_OUT.search(file.as_posix()) and path.suffix != ".pth" and path.is_file():
            yield file.as_posix(), path
    if _is_editable(packed):
        for package in _packages_of(packed):
            yield from _files_in(packed, package)


def _is_editable(packed: Distribution) -> bool:
    origin: dict[str, Any] = json.loads(packed.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _packages_of(packed: Distribution) -> list[str]:
    """The packages of a distribution that is installed in place, whose files it does not list."""
    if _normal(packed.name) == _OURS:
        return list(OUR_PACKAGES)
    named = (packed.read_text("top_level.txt") or "").split()
    return named or sorted({entry.value.partition(":")[0].partition(".")[0] for entry in packed.entry_points})


def _files_in(packed: Distribution, package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not folders:
        advice = "install it without --editable"
        raise EnvironmentUnfit(f"{packed.name} cannot be packed: {package} is not found", suggestion=advice)
    for path in (each for folder in folders for each in folder.rglob("*")):
        name = f"{package}/{path.relative_to(next(each for each in folders if each in path.parents)).as_posix()}"
        if path.is_file() and not _LEFT_OUT.search(name):
            yield name, path


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
