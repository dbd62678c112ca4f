"""YarnCluster: a real YARN on loopback, a ResourceManager and a NodeManager as processes of their own."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import escape

import pyspark
import pytest
from process_tree import processes

from conduit_py.testing.server_process import end_with_parent, free_port

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
START_SECONDS = 120.0
STOP_SECONDS = 20.0
MEMORY_MB = 4096
JARS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),
    # The ResourceManager makes a certificate when it starts, and the jar above does not bring along what that needs.
    ("org.bouncycastle", "bcprov-jdk18on", "1.78.1"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
    ("org.bouncycastle", "bcutil-jdk18on", "1.78.1"),
)
"""What YARN's servers need beyond the jars that come with pyspark, whose Hadoop must be of the same version."""


class YarnCluster:
    """A YARN with one node, or none, which ends when this process does, however it ends."""

    def __init__(self, folder: Path, jars: Path, *, node: bool = True) -> None:
        self.folder = folder
        self._java = java_home()
        self._class_path = f"{self.conf}:{jars}/*:{SPARK_JARS}/*"
        self._web = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.conf.mkdir(parents=True)
        self._configure()
        try:
            self._start("resourcemanager.ResourceManager")
            self._wait_for(lambda: self.ask("info") is not None)
            if node:
                self._start("nodemanager.NodeManager")
                self._wait_for(lambda: bool(self._nodes()))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def conf(self) -> Path:
        """The folder that HADOOP_CONF_DIR must lead to."""
        return self.folder / "conf"

    def ask(self, what: str) -> Any:
        """What the ResourceManager tells over HTTP; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self._web}/ws/v1/cluster/{what}", timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def applications(self) -> list[dict[str, Any]]:
        """All that were ever submitted, oldest first."""
        told: list[dict[str, Any]] = ((self.ask("apps") or {}).get("apps") or {}).get("app", [])
        return sorted(told, key=lambda each: str(each["id"]))

    def logs(self) -> str:
        """The last words of both servers and of every container."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("logs/**/stderr")]
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def stop(self) -> None:
        """The node first, which ends its containers as long as there is somebody to tell of it."""
        below = processes(*(each.pid for each in self._processes.values()))
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = {(each.pid, each.command) for each in below}
        for each in processes(*(each.pid for each in below)):
            if (each.pid, each.command) in left:
                os.kill(each.pid, signal.SIGKILL)

    def _configure(self) -> None:
        _write(self.conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self.folder / "tmp")})
        services = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        _write(
            self.conf / "yarn-site.xml",
            {f"yarn.resourcemanager.{service}": f"127.0.0.1:{free_port()}" for service in services}
            | {
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.resourcemanager.webapp.address": self._web,
                # The default one wants a file of queues.
                "yarn.resourcemanager.scheduler.class":
                    "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler",
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.address": f"127.0.0.1:{free_port()}",
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{free_port()}",
                "yarn.nodemanager.webapp.address": f"127.0.0.1:{free_port()}",
                "yarn.nodemanager.local-dirs": str(self.folder / "local"),
                "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
                "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
                "yarn.nodemanager.vmem-check-enabled": "false",
                # A disk that is almost full would make the node unhealthy.
                "yarn.nodemanager.disk-health-checker.enable": "false",
            },
        )  # fmt: skip

    def _start(self, program: str) -> None:
        command = [str(self._java / "bin" / "java"), "-Xmx256m", *QUICK_JAVA.split(), "-cp", self._class_path]
        with (self.folder / f"{program}.log").open("wb") as log:
            self._processes[program] = subprocess.Popen(
                [*command, f"org.apache.hadoop.yarn.server.{program}"],
                cwd=self.folder,
                # Containers get it from the node.
                env=os.environ | {"JAVA_HOME": str(self._java)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent(),
            )

    def _nodes(self) -> list[Any]:
        told: list[Any] = ((self.ask("nodes?states=RUNNING") or {}).get("nodes") or {}).get("node", [])
        return told

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            assert all(each.poll() is None for each in self._processes.values()), self.logs()
            assert time.monotonic() < deadline, f"YARN does not start: {self.logs()}"
            time.sleep(0.2)


def java_home() -> Path:
    """Where Java is, whose program may be reached through links."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    java = shutil.which("java")
    assert java is not None, "YARN runs on Java, and there is none on this machine"
    return Path(java).resolve().parent.parent


def server_jars(config: pytest.Config) -> Path:
    """The folder with the jars of YARN's servers, fetched once, by coordinates, with the Ivy that comes with Spark."""
    assert config.cache is not None
    folder = Path(config.cache.mkdir("yarn-jars"))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _fetch(folder)
            (folder / "complete").touch()
    return folder / "jars"


def _fetch(folder: Path) -> None:
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false" conf="default->master"/>'
        for group, name, version in JARS
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="conduit-py" module="yarn"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )
    # Maven's public repository alone, where Ivy itself knows it to be.
    (folder / "settings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/>'
        '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
    )
    command = [str(java_home() / "bin" / "java"), "-cp", f"{SPARK_JARS}/*", "org.apache.ivy.Main", "-warn"]
    command += ["-settings", str(folder / "settings.xml"), "-ivy", str(folder / "ivy.xml")]
    command += ["-cache", str(folder / "cache"), "-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, f"the jars of YARN cannot be fetched: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    shutil.rmtree(folder / "cache")


def _write(path: Path, settings: Mapping[str, str]) -> None:
    properties = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{''.join(properties)}</configuration>\n")
