"""Runs the tests that need no server with every Python that is supported and can be had: `make test-pythons`.

Each gets an environment of its own in `.venv/pythons`, from uv.lock with its hashes. An interpreter comes from uv, from
pyenv, from the path, or from Maven Central, where the presets of JavaCPP have one for Linux. One that cannot be had is
reported, and is an error only with `--all`. Versions as arguments, such as `3.14`, run these alone.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
UV = str(Path(sys.executable).parent / "uv")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ENVIRONMENTS = ROOT / ".venv" / "pythons"
ON_MAVEN = {"3.12": "3.12.1-1.5.10", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"}
"""Versions of `org.bytedeco:cpython`, a jar with an interpreter that is linked to what most Linuxes have."""
TESTS = (
    "tests/config", "tests/graph", "tests/inspect", "tests/journal", "tests/processors", "tests/stream",
    "tests/template", "tests/test_batch.py", "tests/test_record.py", "tests/test_runner.py",
    "tests/store/test_backup.py",
    # These two import Spark and other large packages.
    "--ignore=tests/config/test_secrets.py", "--ignore=tests/graph/test_guarantees.py",
    # These two start Kafka.
    "--ignore=tests/processors/test_registry_end_to_end.py", "--ignore=tests/processors/test_registry_outages.py",
)  # fmt: skip


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that is on this machine, or that uv may download."""
    has_uv = Path(UV).exists()
    if has_uv:
        found = subprocess.run([UV, "python", "find", version], capture_output=True, text=True, cwd=ROOT)
        if found.returncode == 0:
            return found.stdout.strip()
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if pyenv:
        return str(pyenv[-1])
    if not has_uv:
        return shutil.which(f"python{version}")
    installed = subprocess.run([UV, "python", "install", "--quiet", version], capture_output=True, cwd=ROOT)
    return find_python(version) if installed.returncode == 0 else fetch_from_maven(version)


def fetch_from_maven(version: str) -> str | None:
    """Unpack an interpreter of this version from Maven Central, once."""
    if version not in ON_MAVEN or shutil.which("mvn") is None:
        return None
    folder, jar = ENVIRONMENTS / f"cpython-{version}", f"cpython-{ON_MAVEN[version]}-linux-x86_64.jar"
    python = folder / "org" / "bytedeco" / "cpython" / "linux-x86_64" / "bin" / f"python{version}"
    if not python.exists():
        artifact = f"-Dartifact=org.bytedeco:cpython:{ON_MAVEN[version]}:jar:linux-x86_64"
        fetch = ["mvn", "-q", "dependency:copy", artifact, f"-DoutputDirectory={folder}"]
        if subprocess.run(fetch, capture_output=True, cwd=ROOT).returncode != 0:
            return None
        with zipfile.ZipFile(folder / jar) as packed:
            packed.extractall(folder)
        python.chmod(0o755)
    return str(python)


def run_tests(version: str, python: str) -> bool:
    """Make the environment and run the tests in it; returns whether they passed."""
    environment = ENVIRONMENTS / version
    sync = [UV, "sync", "--quiet", "--frozen", "--python", python, "--no-default-groups", "--group", "test-pythons"]
    variables = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)}
    if subprocess.run(sync, cwd=ROOT, env=variables).returncode != 0:
        return False
    tests = [str(environment / "bin" / "python"), "-m", "pytest", "-n", "2", *TESTS]
    return subprocess.run(tests, cwd=ROOT).returncode == 0


def main(arguments: list[str]) -> int:
    """Run all, print a line for each version, and return the exit code."""
    results: dict[str, str] = {}
    for version in [each for each in VERSIONS if each in arguments] or VERSIONS:
        python = find_python(version)
        print(f"Python {version}: {python or 'cannot be had here'}", flush=True)
        results[version] = "not to be had" if python is None else "passed" if run_tests(version, python) else "FAILED"
    for version, result in results.items():
        print(f"Python {version}: {result}")
    bad = {"FAILED", "not to be had"} if "--all" in arguments else {"FAILED"}
    return 1 if bad & set(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
