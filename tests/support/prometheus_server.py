"""A real Prometheus: its programs, and a server of it on loopback."""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

CONFIGURATION = """
global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: conduit-py
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True)
class Programs:
    """Where the programs of Debian's package are."""

    prometheus: str
    promtool: str


@pytest.fixture(scope="session")
def prometheus_programs(request: pytest.FixtureRequest) -> Programs:
    """The installed ones, else those of Debian's package, unpacked but not installed: no service is started."""
    installed = shutil.which("prometheus"), shutil.which("promtool")
    if all(installed):
        return Programs(*installed)  # type: ignore[arg-type]
    folder = Path(request.config.cache.mkdir("prometheus"))
    with (folder / "lock").open("w") as lock:
        # Several workers of pytest-xdist share the folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = Programs(str(folder / "usr/bin/prometheus"), str(folder / "usr/bin/promtool"))
        if not Path(found.promtool).exists():
            _unpack(folder)
    return found


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.fail("prometheus and promtool are needed: install them so that they are in the PATH")
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=100)
    subprocess.run(
        ["apt-get", "download", "-q", "prometheus"], cwd=folder, check=True, capture_output=True, timeout=100
    )
    [package] = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True, timeout=300)
    package.unlink()


class Prometheus:
    """A server that answers queries."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; a refusal raises with what Prometheus said."""
        return await trio.to_thread.run_sync(self._get, f"{self._url}{path}?{urllib.parse.urlencode(parameters)}")

    def _get(self, url: str) -> Any:
        try:
            with urllib.request.urlopen(url, timeout=100) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(json.load(refused)["error"]) from refused

    async def ready(self) -> bool:
        """Whether it answers yet: at first nothing listens, then every request is put off."""
        return await trio.to_thread.run_sync(self._ready)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


Scraping = Callable[[str], AbstractAsyncContextManager[Prometheus]]


@pytest.fixture
def scraping(prometheus_programs: Programs, tmp_path: Path) -> Scraping:
    """Starts a Prometheus that scrapes a target and evaluates the alerts, and ends it."""

    @asynccontextmanager
    async def start(target: str, rules: Path = tmp_path / "alerts.yml") -> AsyncIterator[Prometheus]:
        configuration = tmp_path / "prometheus.yml"
        configuration.write_text(CONFIGURATION.format(target=target, rules=rules))
        address = f"127.0.0.1:{_free_port()}"
        options = [f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        options += [f"--web.listen-address={address}", "--log.level=error"]
        process = await trio.lowlevel.open_process([prometheus_programs.prometheus, *options])
        try:
            prometheus = Prometheus(f"http://{address}")
            with trio.fail_after(300):
                while not await prometheus.ready():
                    assert process.poll() is None, "Prometheus has ended by itself"
                    await trio.sleep(0.1)
            yield prometheus
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()

    return start


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
