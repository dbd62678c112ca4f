"""Builds the root file system of the container image without an engine, measures it and runs it: `make test-image`.

The base image is distroless: packages of Debian 12 and nothing else. They are downloaded by apt and unpacked. What the
container file installs is installed by its own lines. The command of the image then runs in a chroot, as its user,
until its health check succeeds. The root file system is not its own to write to. Needs Debian 12, root and the network.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "container" / "Dockerfile"
MEGABYTES_MAX = 150
USER = 65532
# As distroless has them for Python on Debian 12.
PACKAGES = (
    "base-files", "netbase", "tzdata", "media-types", "ca-certificates", "libc6", "libssl3", "libgcc-s1", "libgomp1",
    "libstdc++6", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "python3-distutils",
    "libbz2-1.0", "libcom-err2", "libcrypt1", "libdb5.3", "libexpat1", "libffi8", "libgssapi-krb5-2", "libk5crypto3",
    "libkeyutils1", "libkrb5-3", "libkrb5support0", "liblzma5", "libncursesw6", "libnsl2", "libreadline8",
    "libsqlite3-0", "libtinfo6", "libtirpc3", "libuuid1", "zlib1g",
)  # fmt: skip


def unpack_base(root: Path, folder: Path) -> None:
    """Unpack the packages of the base image."""
    subprocess.run(["apt-get", "download", "-qq", *PACKAGES], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    shutil.rmtree(root / "usr" / "share" / "doc")


def install(root: Path, source: Path) -> None:
    """Run the lines of the stage `build`, into this root."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    stage = text.partition(" AS build\n")[2].partition("\nFROM ")[0]
    extras = re.search(r'^ARG EXTRAS="(.*)"', text, re.MULTILINE)
    assert extras is not None
    variables = {"EXTRAS": extras[1], "UV_PYTHON": "/usr/bin/python3.11", "UV_PYTHON_DOWNLOADS": "never"}
    tools = f"{source / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    (source / "bin").mkdir()
    (source / "bin" / "python").symlink_to("/usr/bin/python3.11")
    for instruction, rest in re.findall(r"^(COPY|RUN) (.*)$", stage, re.MULTILINE):
        if instruction == "COPY":
            subprocess.run(["cp", "-r", *(ROOT / word for word in rest.split()[:-1]), source], check=True)
        elif not rest.startswith("pip install uv"):
            line = rest.replace("/opt/conduit", f"{root}/opt/conduit").replace("/empty/", f"{root}/")
            subprocess.run(line, shell=True, cwd=source, env={**os.environ, **variables, "PATH": tools}, check=True)


def run(root: Path) -> None:
    """Start the image's command as its user, and wait until the health check of the image succeeds."""
    stage = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    entry, command = (json.loads(stage.partition(f"\n{word} ")[2].partition("\n")[0]) for word in ("ENTRYPOINT", "CMD"))
    health = json.loads(stage.partition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0])
    os.chown(root / "state", USER, USER)
    # Nodes of its own, never a mount of /dev: what is mounted below would be deleted with this folder.
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)
    inside = [str(shutil.which("chroot")), f"--userspec={USER}:{USER}", str(root), "/usr/bin/python3.11"]
    variables = {"PYTHONPATH": "/opt/conduit", "PYTHONDONTWRITEBYTECODE": "1", "CONDUIT_API_TOKEN": "x" * 43}
    server = subprocess.Popen([*inside, *entry[1:], *command], env=variables)
    try:
        deadline = time.monotonic() + 300
        while subprocess.run([*inside, *health[1:]], env=variables, stderr=subprocess.DEVNULL).returncode != 0:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not become healthy"
            time.sleep(1)
        server.terminate()
        assert server.wait(300) == 0
    finally:
        server.kill()


def megabytes(folder: Path) -> float:
    """The sizes of all files below, in MB."""
    return sum(each.lstat().st_size for each in folder.rglob("*") if not each.is_symlink() and each.is_file()) / 1e6


def main() -> int:
    """Build, measure, run; return the exit code."""
    with tempfile.TemporaryDirectory() as name:
        root, source, packages = (Path(name, each) for each in ("root", "source", "packages"))
        for folder in (root, source, packages):
            folder.mkdir()
        Path(name).chmod(0o755)
        unpack_base(root, packages)
        base = megabytes(root)
        install(root, source)
        whole = megabytes(root)
        print(f"base {base:.0f} MB, with conduit-py {whole:.0f} MB, of at most {MEGABYTES_MAX} MB")
        run(root)
        print("the server became healthy and stopped")
    return 0 if whole <= MEGABYTES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
