"""HostGuard: which addresses requests may go to, checked where the connection is made.

A URL may come from a record, from a link in an answer or from a redirect. None of them may have this process call an
address that the operator did not allow. That may be the metadata service of a cloud, or a database on this machine.
"""

import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

import httpcore2
import httpx2
import trio

SCHEMES: Final = ("http", "https")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))


class AddressRefused(Exception):
    """The operator did not allow this address. The text says what to do."""


class HostGuard:
    """Decides where requests may go.

    `named` are the hosts of URLs that the operator wrote. They and `allow_hosts` may have any address; every other
    host must have public addresses only. The check is made on the address that is connected to, so a name that
    resolves to something else a moment later gains nothing.
    """

    def __init__(self, named: Iterable[str], allow_hosts: Iterable[str] = ()) -> None:
        self._allowed = frozenset(filter(None, map(normal_host, allow_hosts)))
        self._named = self._allowed | frozenset(filter(None, map(normal_host, named)))

    def is_named(self, host: str) -> bool:
        return normal_host(host) in self._named

    def check_url(self, url: httpx2.URL) -> None:
        """Raise AddressRefused for a URL that cannot be called at all, before anything is resolved."""
        if url.scheme not in SCHEMES or not url.host:
            raise AddressRefused("is no URL with http or https and a host")
        if url.userinfo:
            raise AddressRefused("has a user in its address: give credentials as options")

    def check_link(self, link: httpx2.URL, origin: httpx2.URL) -> None:
        """Raise AddressRefused unless a link leads to the origin of the configured URL, or to a host that was named.

        Credentials are sent along, so a public address is not enough.
        """
        self.check_url(link)
        # The same host by TLS is what most redirects ask for. The same host with any other port is another service.
        upgraded = origin_of(origin)[2] == 80 and origin_of(link) == ("https", normal_host(origin.host), 443)
        if origin_of(link) == origin_of(origin) or upgraded or normal_host(link.host) in self._allowed:
            return
        where = f"{link.scheme}://{link.host}" + (f":{link.port}" if link.port else "")
        raise AddressRefused(f"leads to {where[:200]!r}, which is not the origin of the URL: name it in `allow_hosts`")

    def check_addresses(self, host: str, addresses: Collection[str]) -> None:
        """Raise AddressRefused if one of the addresses of a host that was not named is not public."""
        if self.is_named(host):
            return
        for address in addresses:
            if not is_public(address):
                raise AddressRefused(
                    f"{host[:200]!r} has the address {address}, which is not public: name the host in `allow_hosts`"
                )


def normal_host(host: str) -> str:
    """Return a host as it is compared: in lower case, without brackets or the dot at the end."""
    return host.strip().lower().strip("[]").removesuffix(".")


def origin_of(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, normal_host(url.host), url.port or _DEFAULT_PORTS.get(url.scheme, 0)


def is_public(address: str) -> bool:
    """Return True if the address is one of the internet. Addresses of IPv4 inside of IPv6 count as what they are."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in _with_embedded(ip))


def _with_embedded(ip: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    if isinstance(ip, IPv4Address):
        return [ip]
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    embedded: list[IPv4Address | IPv6Address] = [each for each in (ip.sixtofour, *(ip.teredo or ())) if each]
    if any(ip in network for network in _NAT64):
        embedded.append(IPv4Address(int(ip) & 0xFFFFFFFF))
    return [ip, *embedded]


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests over connections whose addresses the guard has checked. It uses no proxy."""

    def __init__(self, guard: HostGuard, tls: ssl.SSLContext | None) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=20,
            max_keepalive_connections=20,
            keepalive_expiry=15.0,
            network_backend=_GuardedBackend(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.aiter_stream():
            yield chunk

    async def aclose(self) -> None:
        await self._answer.aclose()


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a name, checks all its addresses, and connects to one of those very addresses."""

    def __init__(self, guard: HostGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.TrioBackend()

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *args: Any, **more: Any) -> Any:
        try:
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"the name {host[:200]!r} cannot be resolved: {error}") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        self._guard.check_addresses(host, addresses)
        failed: Exception = httpcore2.ConnectError(f"{host[:200]!r} has no address")
        for address in addresses:
            try:
                # The address, never the name: a second look-up could give another one. TLS still checks the name.
                return await self._inner.connect_tcp(address, port, timeout, *args, **more)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def connect_unix_socket(self, path: str, timeout: float | None = None, *args: Any, **more: Any) -> Any:
        raise AddressRefused("is a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)
