"""Hostile answers: each is refused with an error that says what was wrong, in bounded time and memory."""

import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from conduit_connectors import http
from conduit_connectors.http.client import GuardedClient
from conduit_connectors.http.guard import AddressRefused, HostGuard, is_public
from conduit_connectors.http.pacing import retry_after_seconds
from http_peer import HttpPeer, PeerAnswer, PeerRequest

from conduit_py.sdk import ConduitError, FatalError, Reading, TransientError


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpPeer]:
    with HttpPeer(lambda request: PeerAnswer([])).serving() as serving:
        yield serving


@pytest.fixture
def peer(shared: HttpPeer) -> HttpPeer:
    shared.requests.clear()
    return shared


@pytest.fixture
def tls_files(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    line += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*line, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


async def read(peer: HttpPeer, answer: PeerAnswer, **options: Any) -> Reading:
    peer.respond = lambda request: answer
    connector = http.Source(url=f"{peer.url}/", retries=0, **options)
    await connector.open(None)  # type: ignore[misc]
    try:
        return await connector.read(100)  # type: ignore[misc, no-any-return]
    finally:
        await connector.teardown()


async def read_pages(peer: HttpPeer, answer: PeerAnswer, **options: Any) -> None:
    """Read some pages: a link is checked where it is followed, after the page that has it."""
    peer.respond = lambda request: answer
    connector = http.Source(url=f"{peer.url}/", retries=0, **options)
    await connector.open(None)  # type: ignore[misc]
    try:
        for _ in range(5):
            await connector.read(1)  # type: ignore[misc]
    finally:
        await connector.teardown()


LARGE = b'["' + b"x" * 2_000_000 + b'"]'


@pytest.mark.parametrize(
    ("answer", "options", "kind", "message"),
    [
        (PeerAnswer(LARGE), {"response_size_max": 1_000_000}, FatalError, "more than 1000000 bytes"),
        (PeerAnswer(b"<html>\x1b[31m busy"), {}, TransientError, "it begins '<html> [31m busy'"),
        (PeerAnswer(b'[{"a": 1}'), {}, TransientError, "not valid JSON"),
        (PeerAnswer(b"[" * 100_000), {}, TransientError, "cannot be used"),
        (PeerAnswer(b'[{"a": 1, "a": 2}]'), {}, TransientError, "the key 'a' is there twice"),
        (PeerAnswer({"data": []}), {"records": "items"}, FatalError, "an object with 'data'"),
        (PeerAnswer("text"), {"records": "items"}, FatalError, "the answer is a str"),
        (PeerAnswer(b"\xff\xfe", headers={"content-type": "application/json"}), {}, TransientError, "not valid JSON"),
        (PeerAnswer(b"[1]", headers={"content-type": "text/json; charset=no-such"}), {}, TransientError, "'no-such'"),
        (PeerAnswer(b"\xe9", headers={"content-type": "text/json; charset=utf-16"}), {}, TransientError, "'utf-16'"),
        (PeerAnswer([], headers={"content-encoding": "gzip"}), {}, FatalError, "the encoding 'gzip'"),
        (PeerAnswer(status=404, body=b"gone\n"), {}, FatalError, "answers 404 'gone'"),
        (PeerAnswer(status=403), {}, FatalError, "answers 403"),
        (PeerAnswer(status=500), {}, TransientError, "answers 500"),
        (PeerAnswer(raw=b"HTTP/1.1 2x0 no\r\n\r\n"), {}, TransientError, "cannot be reached"),
        (PeerAnswer(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1"), {}, TransientError, "cannot be reached"),
        (PeerAnswer({"items": [{}], "next": {"a": 1}}), {"paging": "cursor", "cursor_path": "next", "records": "items"},
         FatalError, "is no cursor"),
        (PeerAnswer([{"at": [1]}]), {"since_param": "s", "since_path": "at"}, FatalError, "a list at since_path"),
        (PeerAnswer([{"at": 1}, {"at": "2"}]), {"since_param": "s", "since_path": "at"}, FatalError, "of two types"),
        (PeerAnswer(status=302, headers={"location": "/"}), {}, TransientError, "more than 5 redirects"),
        (PeerAnswer(status=302, headers={"location": "ftp://x/"}), {}, FatalError, "is no URL with http"),
        (PeerAnswer(status=302, headers={"location": "http://[::1"}), {}, TransientError, "Invalid URL in location"),
        (PeerAnswer(status=302, headers={"location": "http://169.254.169.254/"}), {}, FatalError, "allow_hosts"),
        (PeerAnswer([], headers={"link": '<http://localhost:1/>; rel="next"'}), {"paging": "link"}, FatalError,
         "is not the origin"),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_said(
    answer: PeerAnswer, options: dict[str, Any], kind: type[ConduitError], message: str, peer: HttpPeer
) -> None:
    with pytest.raises(kind) as raised:
        await read_pages(peer, answer, **options)

    assert message in f"{raised.value.message} {raised.value.suggestion}"
    assert "\x1b" not in raised.value.message


async def test_an_answer_that_drips_has_a_deadline_as_a_whole(peer: HttpPeer) -> None:
    def drip(request: PeerRequest) -> PeerAnswer:
        time.sleep(1)
        return PeerAnswer([])

    peer.respond = drip
    connector = http.Source(url=peer.url, retries=0, timeout_seconds=0.05)
    await connector.open(None)  # type: ignore[misc]

    with pytest.raises(TransientError, match=r"did not answer within 0\.05 s"):
        await connector.read(1)  # type: ignore[misc]
    await connector.teardown()


async def test_links_in_a_circle_end(peer: HttpPeer) -> None:
    def lead_around(request: PeerRequest) -> PeerAnswer:
        following = {"1": "2", "2": "3", "3": "2"}[request.params.get("p", "1")]
        return PeerAnswer([{"id": 1}], headers={"link": f'<?p={following}>; rel="next"'})

    peer.respond = lead_around
    connector = http.Source(url=f"{peer.url}/?p=1", paging="link")
    await connector.open(None)  # type: ignore[misc]
    got = [len((await connector.read(1)).records) for _ in range(2)]  # type: ignore[misc]
    with pytest.raises(FatalError, match="in a circle"):
        await connector.read(1)  # type: ignore[misc]
    await connector.teardown()

    assert got == [1, 1]
    assert len(peer.requests) == 3


async def test_other_charsets_are_read(peer: HttpPeer) -> None:
    answer = PeerAnswer('[{"a": "é"}]'.encode("latin-1"), headers={"content-type": "application/json; charset=latin-1"})

    reading = await read(peer, answer)

    assert [record.payload.after for record in reading.records] == [{"a": "é"}]


async def test_items_that_are_no_records_are_dead_letters(peer: HttpPeer) -> None:
    lines = PeerAnswer(b'{"a": 1}\nnonsense\n\n7\n', headers={"content-type": "application/x-ndjson"})

    reading = await read(peer, lines)

    assert [record.payload.after for record in reading.records] == [{"a": 1}, b"nonsense", b"7"]
    assert list(reading.refused) == [1, 2]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::1", False),
        ("no address", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_the_address_that_is_connected_to_is_checked(peer: HttpPeer) -> None:
    # A name of a record that resolves to this machine, whatever it looked like before.
    client = GuardedClient(HostGuard(["api.example"]), timeout_seconds=30, size_max=1000)
    with pytest.raises(AddressRefused, match="not public"):
        await client.send("GET", httpx2.URL(f"http://localhost:{peer.port}/"), {})
    await client.close()
    assert peer.requests == []

    named = GuardedClient(HostGuard([], ["LOCALHOST."]), timeout_seconds=30, size_max=1000)
    assert (await named.send("GET", httpx2.URL(f"http://localhost:{peer.port}/"), {})).status == 200
    await named.close()


class Rebinding(trio.abc.HostnameResolver):
    """A name that has another address each time that it is looked up."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.names: list[object] = []

    async def getaddrinfo(self, host: Any, port: Any, *more: Any, **named: Any) -> Any:
        self.names.append(host)
        return [(2, 1, 6, "", (f"127.0.0.{len(self.names)}", self.port))]

    async def getnameinfo(self, *args: Any) -> Any:
        raise NotImplementedError


async def test_a_name_is_resolved_once_for_the_check_and_the_connection(peer: HttpPeer) -> None:
    resolver = Rebinding(peer.port)
    trio.socket.set_custom_hostname_resolver(resolver)
    client = GuardedClient(HostGuard([], ["rebound.example"]), timeout_seconds=30, size_max=1000)

    reply = await client.send("GET", httpx2.URL(f"http://rebound.example:{peer.port}/"), {})
    await client.close()

    # A second look-up would have led to 127.0.0.2, where nothing listens.
    assert (reply.status, len(resolver.names)) == (200, 1)


async def test_credentials_do_not_follow_a_redirect_to_another_host(peer: HttpPeer) -> None:
    target = f"http://localhost:{peer.port}/there"
    peer.respond = lambda request: (
        PeerAnswer([]) if request.path == "/there" else PeerAnswer(status=302, headers={"location": target})
    )
    connector = http.Source(url=f"{peer.url}/here", bearer_token="t0ken", allow_hosts=["localhost"])
    await connector.open(None)  # type: ignore[misc]
    await connector.read(1)  # type: ignore[misc]
    await connector.teardown()

    assert ["authorization" in request.headers for request in peer.requests] == [True, False]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("9" * 50, 3600), ("-1", None), ("soon", None), ("", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)],
)
def test_what_retry_after_asks_for(header: str, seconds: float | None) -> None:
    assert retry_after_seconds({"retry-after": header}) == seconds


async def test_recovery_waits_as_long_as_the_last_answer_asks(peer: HttpPeer) -> None:
    with pytest.raises(TransientError) as raised:
        await read(peer, PeerAnswer(status=503, headers={"Retry-After": "7"}))

    assert raised.value.retry_after == 7


async def test_a_certificate_that_nobody_vouches_for_is_fatal(tls_files: tuple[Path, Path]) -> None:
    cert, key = tls_files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with HttpPeer(lambda request: PeerAnswer([{"a": 1}]), tls=context).serving() as peer:
        url = f"https://localhost:{peer.port}/"
        with pytest.raises(FatalError, match="is not trusted"):
            await _first(http.Source(url=url, retries=0))
        reading = await _first(http.Source(url=url, retries=0, ca_file=str(cert)))

    assert len(list(reading.records)) == 1


async def _first(connector: http.Source) -> Reading:
    await connector.open(None)  # type: ignore[misc]
    try:
        return await connector.read(10)  # type: ignore[misc, no-any-return]
    finally:
        await connector.teardown()


EMPTY = PeerAnswer(b"\n")
LINES = {"content-type": "application/x-ndjson"}


async def test_an_empty_answer_is_no_empty_page(peer: HttpPeer) -> None:
    with pytest.raises(TransientError, match="an empty body"):
        await read(peer, EMPTY)


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (PeerAnswer(status=204), {}),
        (PeerAnswer(b"", headers=LINES), {}),
        (EMPTY, {"format": "jsonl"}),
        (EMPTY, {"records_optional": True}),
    ],
)
async def test_what_may_be_empty_is_an_empty_page(answer: PeerAnswer, options: dict[str, Any], peer: HttpPeer) -> None:
    assert list((await read(peer, answer, **options)).records) == []


@pytest.mark.parametrize("size", [8192, 3000])
async def test_a_link_that_is_too_long_is_refused_and_not_cut(size: int, peer: HttpPeer) -> None:
    # Each of these characters is six in a URL: what is stored must fit too.
    link = "/?q=" + ("x" if size == 8192 else "é") * size
    with pytest.raises(FatalError, match="longer than 8192"):
        await read_pages(peer, PeerAnswer([], headers={"link": f'<{link}>; rel="next"'}), paging="link")

    assert len(peer.requests) == 1
