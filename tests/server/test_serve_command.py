"""`serve` as a real process: operated over HTTP, killed, stopped by signals, and refusing what is unsafe."""

import json
import os
import signal
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest

if TYPE_CHECKING:
    from tests.server.conftest import Running, Server

GENERATED = """
from conduit_py import Destination, Pipeline, Source
from conduit_connectors import file, generator

{id} = Pipeline(
    "{id}",
    sources=[Source("made", generator.Source(rate={rate}, fields={{"id": "index"}}))],
    destinations=[Destination("kept", file.Destination(path="{id}.jsonl"))],
)
"""

STUCK = """
import trio
from conduit_py import Destination, Pipeline, Source, sdk
from conduit_connectors import generator

class Stuck(sdk.DestinationConnector[sdk.Options]):
    async def write(self, batch):
        await trio.sleep_forever()

stuck = Pipeline("stuck", sources=[Source("made", generator.Source())], destinations=[Destination("to", Stuck())])
"""


def numbers(server: "Server", id: str) -> list[int]:
    lines = (server.folder / f"{id}.jsonl").read_text().splitlines()
    return [json.loads(line)["payload"]["after"]["id"] for line in lines]


def moving(running: "Running", id: str) -> None:
    """Wait until more has been acked than there was."""
    before = running.pipeline(id)["progress"]["acked"]
    running.until(id, lambda shown: shown["progress"]["acked"] > before)


def test_a_server_without_pipelines_is_ready_for_some(server: "Server") -> None:
    """The Helm chart has none by default."""
    running = server.start()
    ready = running.http.get("/readyz")

    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert running.http.get("/api/v1/pipelines").json()["pipelines"] == []


def test_operated_over_http(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start()
    moving(running, "a")
    assert running.http.post("/api/v1/pipelines/a/stop").status_code == 202
    stopped = running.until("a", lambda shown: shown["status"] == "stopped")
    count = len(numbers(server, "a"))
    assert stopped["stopped_by"] == "user"
    assert stopped["progress"]["acked"] == count
    position = running.http.get("/api/v1/pipelines/a/positions").json()["positions"]["made"]
    assert running.http.delete("/api/v1/pipelines/a/positions/made").json() == {"positions": {"made": None}}
    put = running.http.put("/api/v1/pipelines/a/positions/made", json={"position": position})
    assert put.json() == {"positions": {"made": position}}
    assert running.http.post("/api/v1/pipelines/a/start").status_code == 202
    moving(running, "a")
    assert running.http.post("/api/v1/pipelines/a/restart").status_code == 202
    moving(running, "a")
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert numbers(server, "a") == list(range(len(numbers(server, "a"))))
    assert len(numbers(server, "a")) > count


def test_a_signal_drains_everything_and_the_next_start_goes_on(server: "Server") -> None:
    for id in ("a", "b"):
        server.write(f"{id}.py", GENERATED.format(id=id, rate=1000))
    for number in (signal.SIGTERM, signal.SIGINT):
        running = server.start()
        for id in ("a", "b"):
            moving(running, id)
        running.signal(number)
        assert running.wait() == 0

    for id in ("a", "b"):
        # Drained: nothing that was read is written twice after the restart.
        assert numbers(server, id) == list(range(len(numbers(server, id))))
    assert server.log().count("pipeline a is stopped") == 2


def test_what_the_user_stopped_stays_stopped_and_the_rest_starts(server: "Server") -> None:
    for id in ("a", "b"):
        server.write(f"{id}.py", GENERATED.format(id=id, rate=1000))
    running = server.start()
    running.http.post("/api/v1/pipelines/a/stop")
    running.until("a", lambda shown: shown["status"] == "stopped")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    again = server.start()
    again.until("b", lambda shown: shown["status"] == "running")

    assert again.pipeline("a")["status"] == "stopped"
    assert again.pipeline("a")["stopped_by"] == "user"


@pytest.mark.slow
def test_killed_under_load_it_goes_on_and_nothing_is_lost(server: "Server") -> None:
    for id in ("a", "b", "c"):
        server.write(f"{id}.py", GENERATED.format(id=id, rate=0))
    for _ in range(4):
        running = server.start()
        for id in ("a", "b", "c"):
            moving(running, id)
        running.signal(signal.SIGKILL)
        running.wait()
    running = server.start()
    for id in ("a", "b", "c"):
        moving(running, id)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0

    for id in ("a", "b", "c"):
        seen = numbers(server, id)
        # At least once: some come twice after a kill, but none is missing.
        assert sorted(set(seen)) == list(range(max(seen) + 1))


def test_a_pipeline_that_does_not_stop_is_forced_after_the_deadline(server: "Server") -> None:
    server.write("stuck.py", STUCK)
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start("--stop-timeout", "1")
    moving(running, "a")
    running.until("stuck", lambda shown: shown["progress"]["in_flight"])
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert numbers(server, "a") == list(range(len(numbers(server, "a"))))


def test_a_second_signal_forces(server: "Server") -> None:
    server.write("stuck.py", STUCK)
    running = server.start("--stop-timeout", "1000")
    running.until("stuck", lambda shown: shown["progress"]["in_flight"])
    running.signal(signal.SIGTERM)
    running.until("stuck", lambda shown: shown["status"] == "stopping")
    assert running.http.get("/readyz").json()["status"] == "stopping"
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert "stopping at once" in server.log()


def test_a_bad_file_stops_no_other_and_is_logged_with_its_line(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    server.write("b_syntax.py", "\n\nx = (\n")
    server.write("c_mistake.py", GENERATED.format(id="c", rate=-1))
    server.write("d_double.py", GENERATED.format(id="d", rate=1))
    server.write("e_double.py", GENERATED.format(id="d", rate=1))
    running = server.start("--log-format", "json")
    moving(running, "a")

    assert [each["id"] for each in running.http.get("/api/v1/pipelines").json()["pipelines"]] == ["a"]
    logged = [json.loads(line) for line in server.log().splitlines()]
    messages = [line["message"] for line in logged if line["level"] == "error"]
    assert [message for message in messages if message.startswith("pipelines/b_syntax.py:3: ")]
    assert [message for message in messages if message.startswith("pipelines/c_mistake.py:7: ")]
    assert len(messages) == 4
    for message in messages:
        if "double" in message:
            assert "the id 'd' is also used in" in message


YAML = """
version: "2.2"
pipelines:
  - id: from-yaml
    status: {status}
    connectors:
      - id: made
        type: source
        plugin: builtin:generator
        settings: {{rate: 1000, format.type: structured, format.options.id: int}}
      - id: kept
        type: destination
        plugin: builtin:file
        settings: {{path: yaml.jsonl}}
"""


def test_conduit_yaml_is_served_and_what_it_wants_stopped_waits_for_a_user(server: "Server") -> None:
    server.write("on.yaml", YAML.format(status="running"))
    server.write(
        "off.yaml", YAML.format(status="stopped").replace("from-yaml", "off").replace("yaml.jsonl", "off.jsonl")
    )
    running = server.start()
    moving(running, "from-yaml")
    assert running.pipeline("off")["status"] == "stopped"
    running.http.post("/api/v1/pipelines/off/start").raise_for_status()
    moving(running, "off")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    again = server.start()

    moving(again, "off")


LEAKY = """
from pydantic import SecretStr
from conduit_py import Destination, Pipeline, Source, sdk
from conduit_connectors import generator

class Options(sdk.Options):
    password: SecretStr

class Leaky(sdk.DestinationConnector[Options]):
    async def write(self, batch):
        raise OSError("cannot log in with " + self.options.password.get_secret_value())

leaky = Pipeline(
    "leaky",
    sources=[Source("made", generator.Source())],
    destinations=[Destination("to", Leaky(password="correct-horse-battery"))],
)
"""


def test_a_secret_is_neither_in_the_api_nor_in_the_log(server: "Server") -> None:
    server.write("leaky.py", LEAKY)
    running = server.start("--debug")
    shown = running.until("leaky", lambda shown: shown["error"])
    running.signal(signal.SIGTERM)
    running.wait()

    assert "cannot log in with ***" in shown["error"]["message"]
    assert "correct-horse" not in server.log()


def test_the_live_stream_comes_twice_a_second_and_ends_with_the_server(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start()
    arrived = []
    with httpx2.stream("GET", f"{running.url}/api/v1/live", timeout=300) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                arrived.append(json.loads(line.removeprefix("data: ")))
                if len(arrived) == 4:
                    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert arrived[3]["at"] - arrived[0]["at"] >= 1.4
    assert [each["pipelines"][0]["id"] for each in arrived[:4]] == ["a"] * 4


def test_clients_that_stall_neither_hold_up_others_nor_the_end(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start()
    stalled = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(3)]
    stalled[1].sendall(b"GET /api/v1/pipelines HT")
    stalled[2].sendall(b"POST /api/v1/pipelines/a/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    moving(running, "a")
    running.signal(signal.SIGTERM)

    assert running.wait() == 0
    # Cut off, not answered: the end did not wait until the body had taken too long.
    with suppress(ConnectionResetError):
        assert stalled[2].recv(100) == b""
    for each in stalled:
        each.close()


def test_a_body_without_end_is_answered_and_let_go_of(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start()
    for _ in range(3):
        answer = running.http.post("/api/v1/pipelines/a/stop", content=b"x" * 5_000_000)
        assert (answer.status_code, "server" in answer.headers) == (413, False)

    assert running.pipeline("a")["status"] == "running"


def test_an_address_that_others_can_reach_needs_tokens(server: "Server") -> None:
    process = server.command("--host", "0.0.0.0")
    output, _ = process.communicate(timeout=300)

    assert process.returncode == 3
    assert output == ""
    assert "without a token" in server.log()
    assert "give --token-file or CONDUIT_API_TOKEN, or bind 127.0.0.1" in server.log()
    assert not (server.folder / "state").exists()


HOST = b"Host: localhost\r\n"
UPGRADE = b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def test_no_bytes_let_anybody_in_without_a_token(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start(CONDUIT_API_TOKEN="admin-admin-admin-admin")

    def status(request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", running.port), timeout=300) as connection:
            connection.sendall(request)
            return connection.makefile("rb").readline().split()[1]

    assert status(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") == b"200"
    for path in (b"//healthz", b"/healthz/../api/v1/pipelines", b"/api/v1/pipelines/..;/healthz", b"/%2e%2e/healthz"):
        assert status(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n") == b"401"
    assert status(b"GET http://localhost/healthz HTTP/1.1\r\n" + HOST + b"\r\n") == b"401"
    assert status(b"GET /healthz HTTP/1.0\r\n\r\n") == b"400"
    assert status(b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n") == b"400"
    assert status(b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n") == b"431"
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert status(b"POST /api/v1/pipelines/a/stop HTTP/1.1\r\n" + HOST + both) == b"400"
    websocket = b"Upgrade: websocket\r\n" + UPGRADE + b"\r\n"
    assert status(b"GET /api/v1/live HTTP/1.1\r\n" + HOST + websocket) == b"401"
    assert running.http.get("/healthz").status_code == 200


def test_tokens_from_a_file_and_from_the_environment(server: "Server") -> None:
    file = server.folder / "tokens"
    file.write_text("# ours\nread reader-reader-reader\n\noperate operator-operator-op # night shift\n")
    file.chmod(0o600)
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    running = server.start("--host", "0.0.0.0", "--token-file", "tokens", CONDUIT_API_TOKEN="admin-admin-admin-admin")

    def status(token: str, method: str, path: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{running.port}{path}"
        return httpx2.request(method, url, headers=headers, timeout=300).status_code

    assert status("wrong-wrong-wrong-wrong", "GET", "/api/v1/pipelines") == 401
    assert status("reader-reader-reader", "GET", "/api/v1/pipelines") == 200
    assert status("reader-reader-reader", "POST", "/api/v1/pipelines/a/stop") == 403
    assert status("operator-operator-op", "POST", "/api/v1/pipelines/a/stop") == 202
    assert status("admin-admin-admin-admin", "GET", "/api/v1/plugins") == 200
    assert status("wrong-wrong-wrong-wrong", "GET", "/healthz") == 200
    assert "unencrypted" in server.log()


def test_a_token_file_that_others_can_read_is_refused(server: "Server") -> None:
    file = server.folder / "tokens"
    file.write_text("read reader-reader-reader")
    file.chmod(0o644)
    process = server.command("--token-file", "tokens")
    process.communicate(timeout=300)

    assert process.returncode == 3
    assert "token file tokens can be used by others (mode 0644)" in server.log()
    assert "chmod 600 tokens" in server.log()


def test_a_port_in_use_starts_nothing(server: "Server") -> None:
    server.write("a.py", GENERATED.format(id="a", rate=1000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = server.command(port=taken.getsockname()[1])
        process.communicate(timeout=300)

    assert process.returncode == 3
    assert "cannot listen on 127.0.0.1" in server.log()
    assert not (server.folder / "a.jsonl").exists()


def test_a_state_directory_in_use_is_refused(server: "Server") -> None:
    server.start()
    process = server.command()
    process.communicate(timeout=300)

    assert process.returncode == 3
    assert "is in use by process" in server.log()


def certificate(folder: Path, name: str, *signed_by: str) -> None:
    """A key and a certificate for this machine, its own or signed by another one."""
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"]
    subprocess.run([*line, *subject, *files, *signed_by], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(not any((Path(each) / "openssl").exists() for each in os.get_exec_path()), reason="needs openssl")
def test_tls_and_client_certificates(server: "Server") -> None:
    certificate(server.folder, "server")
    certificate(server.folder, "client")
    running = server.start("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "client.pem")
    trusting = ssl.create_default_context(cafile=str(server.folder / "server.pem"))
    with pytest.raises((httpx2.TransportError, ssl.SSLError)):
        httpx2.get(f"{running.url}/healthz", verify=trusting, timeout=300)
    trusting.load_cert_chain(server.folder / "client.pem", server.folder / "client.key")
    answer = httpx2.get(f"{running.url}/healthz", verify=trusting, timeout=300)

    assert running.url.startswith("https://")
    assert answer.status_code == 200
    running.signal(signal.SIGTERM)
    assert running.wait() == 0


def test_a_folder_that_is_not_there_is_refused(server: "Server") -> None:
    server.pipelines.rmdir()
    process = server.command()
    process.communicate(timeout=300)

    assert process.returncode == 3
    assert "there is no pipelines" in server.log()
    assert not (server.folder / "state").exists()
