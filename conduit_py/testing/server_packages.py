"""The programs of servers that tests run: those of this machine, else from Debian's packages or from Maven."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from conduit_py.testing.server_process import locked


@contextmanager
def cached(name: str) -> Iterator[Path]:
    """A folder for what is fetched once. The caller fills it if it has no file `complete`; others wait until then."""
    # Servers of root run as a user who cannot enter root's home.
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) if os.geteuid() else Path("/var/cache")
    folder = home / "conduit-py" / name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield folder
        (folder / "complete").touch()


def unpack(name: str, package: Callable[[], str] | None = None) -> Path:
    """Debian's package and what it needs, unpacked into a folder but not installed: no service is started.

    `package` finds which package it is, if not that of this name, once apt has its lists.
    """
    with cached(name) as folder:
        if not (folder / "complete").exists():
            _fetch_and_unpack(folder, package or (lambda: name))
    return folder


def _fetch_and_unpack(folder: Path, package: Callable[[], str]) -> None:
    if shutil.which("apt-get") is None:
        pytest.fail(f"a server is missing: install {folder.name} so that its programs are in the PATH")
    archives = folder / "archives"
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=100)
    command = ["apt-get", "install", "--download-only", "--no-install-recommends", "-qy", "-oDebug::NoLocking=1"]
    command += [f"-oDir::Cache::archives={archives}", package()]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder)], check=True, timeout=300)
    shutil.rmtree(archives)


def fetch_by_maven(name: str, artifact: str) -> Path:
    """A folder with `libs`: the artifact and what it needs, or what an archive such as `…:tar.gz:all` contains."""
    maven = shutil.which("mvn")
    with cached(name) as folder:
        if not (folder / "complete").exists():
            if maven is None:
                pytest.fail(f"{name} comes from Maven: install maven")
            group, artifact_id, version, *archive = artifact.split(":")
            (folder / "pom.xml").write_text(_POM.format(group=group, artifact=artifact_id, version=version))
            goal = ["dependency:copy", f"-Dartifact={artifact}"] if archive else ["dependency:copy-dependencies"]
            command = [maven, "-q", "-f", str(folder / "pom.xml"), *goal, f"-DoutputDirectory={folder / 'libs'}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"Maven cannot fetch {artifact}: {done.stdout[-2000:]}")
            if archive:
                subprocess.run("tar -xzf *.tar.gz && rm *.tar.gz", shell=True, cwd=folder / "libs", check=True)
    return folder


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>conduit-py</groupId><artifactId>for-tests</artifactId><version>1</version><dependencies><dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies>
</project>"""


def java_command() -> list[str]:
    """Java with a small heap, which spends no time on optimising."""
    java = shutil.which("java")
    if java is None:
        pytest.fail("this server runs on Java 17: install openjdk-17-jre-headless")
    return [java, "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def libraries_below(root: Path) -> str:
    """Where the libraries are that were unpacked with a program."""
    return ":".join(sorted({str(path.parent) for path in root.glob("**/*.so.*")}))


@cache
def postgres_programs() -> tuple[Path, str]:
    """The folder of the newest PostgreSQL of this machine, or of Debian's, and where its libraries are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent, ""
    initdb = shutil.which("initdb")
    if initdb:
        return Path(initdb).resolve().parent, ""
    root = unpack("postgresql", _postgres_package)
    [unpacked] = root.glob("usr/lib/postgresql/*/bin/initdb")
    return unpacked.parent, libraries_below(root)


def _postgres_package() -> str:
    """The package that the package of all versions stands for, such as postgresql-15."""
    shown = subprocess.run(["apt-cache", "depends", "postgresql"], check=True, capture_output=True, text=True)
    return next(line.split()[-1] for line in shown.stdout.splitlines() if "Depends: postgresql-" in line)


@cache
def mariadb_programs() -> tuple[Path, str]:
    """The folder that has `usr/sbin/mariadbd`, and where its libraries are."""
    if Path("/usr/sbin/mariadbd").exists():
        return Path("/"), ""
    root = unpack("mariadb-server")
    return root, libraries_below(root)
