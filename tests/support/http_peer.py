"""HttpPeer: an HTTP server on loopback that answers with a function of the test, in threads of its own."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class PeerRequest:
    """A request as it arrived."""

    method: str
    path: str
    params: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class PeerAnswer:
    """What is answered. `raw` bytes are sent as they are, and end the connection."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class HttpPeer:
    """Counts requests, and answers each with `respond`, which any thread may call."""

    def __init__(self, respond: Callable[[PeerRequest], PeerAnswer], tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[PeerRequest] = []
        self.respond = respond
        peer = self

        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = PeerRequest(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
                peer.requests.append(request)
                self.put(peer.respond(request))

            def put(self, answer: PeerAnswer) -> None:
                if answer.raw is not None:
                    self.wfile.write(answer.raw)
                    self.close_connection = True
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                kind = {"content-type": "application/json", "content-length": str(len(body))}
                for name, value in (kind | {name.lower(): each for name, each in answer.headers.items()}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            """Says nothing of clients that leave."""

            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    @contextmanager
    def serving(self) -> Iterator["HttpPeer"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class PagedApi:
    """A list of numbered records behind every kind of paging. `disturb` may answer in place of it."""

    def __init__(self, count: int, size: int = 4) -> None:
        self.records = [{"id": n, "updated": f"2026-01-01T00:00:{n // 3:02}Z", "text": f"é{n}"} for n in range(count)]
        self.size = size
        self.disturb: Callable[[PeerRequest], PeerAnswer | None] = lambda request: None

    def __call__(self, request: PeerRequest) -> PeerAnswer:
        disturbed = self.disturb(request)
        if disturbed is not None:
            return disturbed
        params = request.params
        found = [each for each in self.records if str(each["updated"]) >= params.get("since", "")]
        kind = request.path.strip("/")
        start = int(params.get("offset", 0)) if kind == "offset" else int(params.get("cursor", 0))
        if kind == "page":
            start = (int(params.get("page", 1)) - 1) * self.size
        page = found[start : start + self.size]
        following = start + self.size if start + self.size < len(found) else None
        headers = {}
        if kind == "link" and following is not None:
            since = f"&since={params['since']}" if "since" in params else ""
            headers["Link"] = f'</link?cursor={following}{since}>; rel="next", </>; rel="first"'
        if kind == "jsonl":
            lines = b"".join(json.dumps(each).encode() + b"\n" for each in found)
            return PeerAnswer(lines, headers={"content-type": "application/x-ndjson"})
        return PeerAnswer({"data": {"items": page}, "next": following}, headers=headers)
