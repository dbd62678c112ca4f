"""Clients without a token, as bytes on a socket: none of them takes the API away from the others."""

import os
import resource
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx2
import pytest
import trio
from waiting import until

from conduit_py.server.limits import CONNECTIONS_MAX

if TYPE_CHECKING:
    from tests.server.conftest import Running, Server

TOKEN = "admin-admin-admin-admin"
HOST = b"Host: localhost\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def connect(running: "Running") -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=300)


def answer(connection: socket.socket) -> bytes:
    """Everything that the server sends until it ends the connection."""
    chunks = []
    while chunk := connection.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def ask(running: "Running", request: bytes) -> bytes:
    with connect(running) as connection:
        connection.sendall(request)
        return answer(connection)


def test_http_2_with_prior_knowledge_is_refused(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)

    assert ask(running, PREFACE).startswith(b"HTTP/1.1 505 ")


def test_an_upgrade_to_http_2_is_ignored(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"

    assert ask(running, b"GET /healthz HTTP/1.1\r\n" + HOST + upgrade).startswith(b"HTTP/1.1 200 ")


def test_there_is_no_http_2_within_tls(server: "Server") -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key", "-out", "cert"]
    line = ["openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(line, cwd=server.folder, check=True, capture_output=True)
    running = server.start("--tls-cert", "cert", "--tls-key", "key", CONDUIT_API_TOKEN=TOKEN)
    context = ssl.create_default_context(cafile=str(server.folder / "cert"))
    context.set_alpn_protocols(["h2"])
    with connect(running) as plain, context.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(PREFACE)

        assert connection.selected_alpn_protocol() is None
        assert connection.recv(100).startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HT", id="half-a-head"),
        pytest.param(
            b"POST /api/v1/pipelines/a/stop HTTP/1.1\r\n" + HOST + b"Content-Length: 99999\r\n\r\n" + b"x" * 60_000,
            id="half-a-body",
        ),
        pytest.param(PREFACE, id="http-2"),
    ],
)
def test_healthz_answers_while_as_many_connections_are_held_as_there_may_be(server: "Server", request_: bytes) -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    held = [connect(running) for _ in range(CONNECTIONS_MAX + 8)]
    for connection in held:
        connection.sendall(request_)

    for _ in range(3):
        assert httpx2.get(f"{running.url}/healthz", timeout=300).status_code == 200
    for connection in held:
        connection.close()


def test_clients_that_do_not_read_and_leave_hold_nothing(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    held = []
    for _ in range(CONNECTIONS_MAX + 8):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", running.port))
        connection.sendall((b"GET /page.js HTTP/1.1\r\n" + HOST + b"\r\n") * 50)
        held.append(connection)

    assert httpx2.get(f"{running.url}/healthz", timeout=300).status_code == 200
    for connection in held:
        connection.close()
    assert httpx2.get(f"{running.url}/healthz", timeout=300).status_code == 200


def test_a_length_and_chunks_at_once_are_refused_and_the_connection_ends(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    smuggled = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    answered = ask(running, b"POST /api/v1/pipelines/a/stop HTTP/1.1\r\n" + HOST + both + smuggled)

    assert answered.startswith(b"HTTP/1.1 400 ")
    assert answered.count(b"HTTP/1.1 ") == 1
    assert b"request.malformed" in answered


STRANGE = [
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: x\r\n\r\n",
    b"GET /%ff%00 HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET /?\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    b"FOO * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\xff\4\0\0\0\0\0",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\r\n\0",
]


def test_strange_requests_write_nothing_to_the_log(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    before = len(server.log())
    for request in STRANGE:
        with connect(running) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer(connection)

    assert server.log()[before:] == ""
    assert httpx2.get(f"{running.url}/healthz", timeout=300).status_code == 200


def test_clients_cannot_take_all_descriptors(server: "Server") -> None:
    """Held connections are replaced before the process is out of descriptors, which its pipelines need."""
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    used = len(os.listdir(f"/proc/{running.process.pid}/fd"))
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (2 * used + 60, 2 * used + 60))
    held = [connect(running) for _ in range(2 * used + 80)]

    assert ask(running, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    for connection in held:
        connection.close()
    assert "Too many open files" not in server.log()


def test_a_server_out_of_descriptors_accepts_again_when_there_are_some(server: "Server") -> None:
    running = server.start(CONDUIT_API_TOKEN=TOKEN)
    limits = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
    # As if pipelines had taken all the others.
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    with connect(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        trio.run(until, lambda: "new connections wait for a file descriptor" in server.log())
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, limits)

        assert answer(connection).startswith(b"HTTP/1.1 200 ")
    assert "Traceback" not in server.log()
