"""Real brokers for tests, found or fetched, one of each per worker of pytest-xdist: RabbitMQ, Mosquitto,
OpenSearch."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from conduit_py.testing.server_packages import cached, fetch_by_maven, java_command, libraries_below, unpack
from conduit_py.testing.server_process import LoopbackService, ServerProcess, free_port


class RabbitServer(LoopbackService):
    """RabbitMQ without plugins, for the user guest. Durable queues are there after `kill -9`."""

    name = "rabbitmq"
    _names: ServerProcess | None = None
    """The server of names that Erlang needs."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def initialise(self) -> None:
        erlang, _ = self._programs()
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\nlog.console = true\nlog.file = false\n"
            # What a machine of CI has left on its disk is no matter of the tests.
            "disk_free_limit.absolute = 1MB\n"
        )
        (self.folder / "plugins").write_text("[].")
        # Erlang's own has the folder of an installation in it.
        program = self.folder / "erl"
        program.write_text(f'#!/bin/sh\nexec {erlang}/erlexec "$@"\n')
        program.chmod(0o755)

    def start(self) -> None:
        erlang, server = self._programs()
        if self._names is None:
            self._names = ServerProcess(self.folder / "names.log")
            self._names.run([str(erlang / "epmd"), "-port", str(self._names.port), "-address", "127.0.0.1"])
        settings = {
            "PATH": f"{self.folder}:/usr/bin:/bin", "HOME": str(self.folder), "LC_ALL": "C.UTF-8",
            "BINDIR": str(erlang), "ROOTDIR": str(erlang.parents[1]), "EMU": "beam", "PROGNAME": "erl",
            "ERL_EPMD_PORT": str(self._names.port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tests{self.port}@localhost", "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_HOME": str(server), "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOGS": "-", "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            # Without a shell around it, which would outlive the server that is killed.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip
        command = ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items())]
        libraries = "" if server.is_relative_to("/usr") else libraries_below(server.parents[4])
        self.run([*command, str(server / "sbin" / "rabbitmq-server")], libraries=libraries, user=self._user)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        super().stop(how)
        if self._names is not None:
            self._names.stop()
            self._names = None

    @staticmethod
    def _programs() -> tuple[Path, Path]:
        """The folders of Erlang's programs and of the server."""
        root = Path("/")
        if not Path("/usr/lib/rabbitmq").exists():
            root = unpack("rabbitmq-server")
        [erlang] = root.glob("usr/lib/erlang/erts-*/bin")
        [server] = root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")
        return erlang, server


class MosquittoServer(LoopbackService):
    """Mosquitto, with a second port for the user `me`. Sessions and what they hold are there after `kill -9`."""

    name = "mosquitto"
    password = "hush-hush-mosquitto"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def guarded_address(self) -> str:
        """The address of the port that asks for a password."""
        return (self.folder / "guarded").read_text()

    def initialise(self) -> None:
        guarded = free_port()
        (self.folder / "guarded").write_text(f"127.0.0.1:{guarded}")
        users = [*self._command("bin/mosquitto_passwd"), "-b", "-c", str(self.folder / "users")]
        self._call([*users, "me", self.password], self._libraries())
        (self.folder / "mosquitto.conf").write_text(
            f"per_listener_settings true\nlistener {self.port} 127.0.0.1\nallow_anonymous true\n"
            f"listener {guarded} 127.0.0.1\nallow_anonymous false\npassword_file {self.folder / 'users'}\n"
            f"persistence true\npersistence_location {self.folder}/\nmax_queued_messages 0\n"
            # At each change: it keeps what it has in memory otherwise, until it ends in good order.
            "autosave_on_changes true\nautosave_interval 1\nmessage_size_limit 100000\n"
        )

    def start(self) -> None:
        command = [*self._command("sbin/mosquitto"), "-c", str(self.folder / "mosquitto.conf")]
        self.run(command, libraries=self._libraries(), user=self._user)

    @staticmethod
    def _command(program: str) -> list[str]:
        found = shutil.which(Path(program).name)
        return [found or str(unpack("mosquitto") / "usr" / program)]

    @staticmethod
    def _libraries() -> str:
        return "" if shutil.which("mosquitto") else libraries_below(unpack("mosquitto"))


_NODE = """import java.util.*; import org.opensearch.common.settings.Settings; import org.opensearch.node.*;
public class Server extends Node {
    Server(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "tests"),
            List.of(org.opensearch.transport.Netty4Plugin.class), false);
    }
    public static void main(String[] arguments) throws Exception {
        var settings = Settings.builder().put("node.name", "tests").put("cluster.name", "tests");
        for (String each : arguments) settings.put(each.split("=", 2)[0], each.split("=", 2)[1]);
        new Server(settings.build()).start();
        Thread.currentThread().join();
    }
}
"""


class OpenSearchServer(LoopbackService):
    """One node of OpenSearch, without security. What it has confirmed is there after `kill -9`."""

    name = "opensearch"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = {
            "path.home": self.folder, "http.port": self.port, "transport.port": free_port(),
            "network.host": "127.0.0.1", "discovery.type": "single-node", "http.type": "netty4",
            "transport.type": "netty4", "cluster.routing.allocation.disk.threshold_enabled": "false",
        }  # fmt: skip
        command = [*java_command(), "-cp", self._class_path(), "Server"]
        command += [f"{name}={value}" for name, value in settings.items()]
        self.run(command, answers=self._answers, user=self._user)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/_cluster/health", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False

    @staticmethod
    def _class_path() -> str:
        # The distribution is not on Maven, but the libraries are that it is made of. Newer ones need a newer Java.
        found = [
            fetch_by_maven("opensearch-2.19.6", "org.opensearch:opensearch:2.19.6"),
            fetch_by_maven("opensearch-netty-2.19.6", "org.opensearch.plugin:transport-netty4-client:2.19.6"),
            fetch_by_maven("opensearch-log4j-2.25.4", "org.apache.logging.log4j:log4j-core:2.25.4"),
        ]
        libraries = ":".join(f"{folder / 'libs'}/*" for folder in found)
        with cached("opensearch-node-1") as folder:
            if not (folder / "complete").exists():
                (folder / "Server.java").write_text(_NODE)
                # A runtime of Java has no compiler of its own.
                compiler = fetch_by_maven("ecj-3.33.0", "org.eclipse.jdt:ecj:3.33.0") / "libs" / "ecj-3.33.0.jar"
                each = ":".join(str(library) for found_in in found for library in (found_in / "libs").glob("*.jar"))
                command = [*java_command(), "-jar", str(compiler), "-17", "-nowarn", "-cp", each]
                subprocess.run([*command, "-d", str(folder), str(folder / "Server.java")], check=True, timeout=300)
        return f"{folder}:{libraries}"


@pytest.fixture(scope="session")
def opensearch() -> Iterator[OpenSearchServer]:
    """An OpenSearch. A test may `kill()` it and `start()` it again: give indexes names that no other test uses."""
    with OpenSearchServer.started() as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    """A Mosquitto: give clients and topics names that no other test uses."""
    with MosquittoServer.started() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    """A RabbitMQ. A test may `kill()` it and `start()` it again: give queues names that no other test uses."""
    with RabbitServer.started() as server:
        yield server
