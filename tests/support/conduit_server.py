"""The real `conduit-py serve` as a process, and what tests ask of it over HTTP."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from warm_python import WarmCommand


class Server:
    """A real `conduit-py serve` in a folder of its own, on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipelines = folder / "pipelines"
        self.pipelines.mkdir()
        self._processes: list[subprocess.Popen[str]] = []
        self._running: list[Running] = []

    def write(self, name: str, text: str) -> None:
        (self.pipelines / name).write_text(text)

    def command(self, *arguments: str, port: int = 0, **environment: str) -> "subprocess.Popen[str]":
        places = ["--pipelines", "pipelines", "--port", str(port)]
        if "--state" not in arguments:
            places += ["--state", "state"]
        if "--log-format" not in arguments:
            # Lines that tests can look for as they are; JSON, the default, is for programs.
            places += ["--log-format", "text"]
        with (self.folder / "log").open("a") as log:
            process = WarmCommand(
                *("serve", *places, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **environment},
            )
        self._processes.append(process)
        return process

    def start(self, *arguments: str, **environment: str) -> "Running":
        """Start it and wait until it says that it serves."""
        process = self.command(*arguments, port=0, **environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http" in line, self.log()
        self._running.append(Running(process, line.split()[-1]))
        return self._running[-1]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        for running in self._running:
            running.http.close()
        for process in self._processes:
            process.kill()
            process.communicate()


class Running:
    """A server that serves."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.http = httpx2.Client(base_url=url, timeout=300, verify=False)  # to make one without reads all certificates

    def pipeline(self, id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.http.get(f"/api/v1/pipelines/{id}").raise_for_status().json()
        return shown

    def until(self, id: str, wanted: Callable[[dict[str, Any]], object], seconds: float = 300) -> dict[str, Any]:
        """Ask for a pipeline again and again until it is as wanted."""
        deadline = time.monotonic() + seconds
        while True:
            shown = self.pipeline(id)
            if wanted(shown):
                return shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        self.http.close()
        return self.process.wait(300)
