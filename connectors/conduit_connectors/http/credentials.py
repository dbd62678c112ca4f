"""Credentials: what a request shows. A client for the options; tokens of OAuth2 are renewed in time."""

import base64
import ssl
from typing import Final
from urllib.parse import quote, urlencode

import httpx2
import trio

from conduit_connectors.http.client import AnswerTooLarge, GuardedClient, place
from conduit_connectors.http.connection_options import ConnectionOptions
from conduit_connectors.http.guard import AddressRefused, HostGuard
from conduit_connectors.http.pacing import is_transient
from conduit_py.sdk import FatalError, RecordRefused, TransientError, decode_json

_EARLY_SECONDS: Final = 60.0
_LIFE_SECONDS: Final = 300.0
"""How long a token is used whose answer does not say."""


def make_client(options: ConnectionOptions, url: str) -> GuardedClient:
    """Return a client that may call the hosts of these URLs, and follow links to `allow_hosts`."""
    urls = [httpx2.URL(each) for each in (url, options.token_url) if each]
    return GuardedClient(
        HostGuard([each.host for each in urls], options.allow_hosts),
        timeout_seconds=options.timeout_seconds,
        size_max=options.response_size_max,
        tls=_tls_context(options, urls),
    )


def _tls_context(options: ConnectionOptions, urls: list[httpx2.URL]) -> ssl.SSLContext | None:
    # Reading the certificates of the machine takes longer than the rest of `open`.
    if all(each.scheme == "http" for each in urls) and options.ca_file is None and options.cert_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.cert_file is not None:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as error:  # SSLError is one
        raise FatalError(
            f"the certificates for {place(urls[0])} cannot be used: {error}",
            suggestion="check ca_file, cert_file and key_file",
        ) from error
    return context


class Credentials:
    """Gives the headers for a request. A token of OAuth2 is asked for when it is needed and renewed before it ends."""

    def __init__(self, options: ConnectionOptions, client: GuardedClient) -> None:
        self._options = options
        self._client = client
        self._token = ""
        self._renew_at = 0.0

    async def headers(self) -> dict[str, str]:
        options = self._options
        if options.bearer_token is not None:
            return {"authorization": f"Bearer {options.bearer_token.get_secret_value()}"}
        if options.username is not None and options.password is not None:
            pair = f"{options.username}:{options.password.get_secret_value()}"
            return {"authorization": _basic(pair)}
        if options.token_url is None:
            return {}
        if not self._token or trio.current_time() >= self._renew_at:
            await self._renew(options.token_url)
        return {"authorization": f"Bearer {self._token}"}

    def reject(self) -> bool:
        """Forget a token that was refused. Returns True if there is a new one to try."""
        renewable = bool(self._token)
        self._token = ""
        return renewable

    async def _renew(self, token_url: str) -> None:
        options, url = self._options, httpx2.URL(token_url)
        assert options.client_id is not None
        assert options.client_secret is not None
        form = {"grant_type": "client_credentials"} | ({"scope": options.scope} if options.scope else {})
        pair = f"{quote(options.client_id, safe='')}:{quote(options.client_secret.get_secret_value(), safe='')}"
        headers = {"authorization": _basic(pair), "accept": "application/json"}
        headers["content-type"] = "application/x-www-form-urlencoded"
        asked_at = trio.current_time()
        try:
            reply = await self._client.send("POST", url, headers, urlencode(form).encode())
        except (AddressRefused, AnswerTooLarge) as error:
            raise FatalError(f"no token from {place(url)}: {error}", suggestion="check token_url") from error
        if is_transient(reply.status):
            raise TransientError(f"{place(url)} gives no token: it answers {reply.status}")
        token, life = _token_in(reply.body) if reply.status == 200 else (None, None)
        if token is None:
            raise FatalError(
                f"{place(url)} gives no token: it answers {reply.status} {reply.excerpt!r}",
                suggestion="check token_url, client_id, client_secret and scope",
            )
        life = _LIFE_SECONDS if life is None else life
        # Early, but not so early that a token of a minute would be renewed for every request.
        self._renew_at = asked_at + max(life - _EARLY_SECONDS, life / 2)
        self._token = token


def _token_in(body: bytes) -> tuple[str | None, float | None]:
    try:
        answer = decode_json(body)
    except RecordRefused:
        return None, None
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        return None, None
    life = answer.get("expires_in")
    if isinstance(life, str) and life.isdigit():
        life = int(life[:9])
    return token, float(life) if isinstance(life, int | float) and 0 < life < 1e9 else None


def _basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
