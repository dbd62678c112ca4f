"""serve_api: the API as an ASGI application, served over HTTP/1.1 on a socket."""

import logging
import ssl
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import trio
from fastapi import FastAPI
from fastapi.routing import APIRoute

from conduit_py import __version__
from conduit_py.defaults import HOST, PORT
from conduit_py.errors import EnvironmentUnfit
from conduit_py.server import access, dead_letters, live, monitoring, pipelines, taps, web
from conduit_py.server.access import VARIABLE, AccessCheck, Policy, Tokens
from conduit_py.server.errors import UnexpectedErrors, handle_errors
from conduit_py.server.hooks import Hooks
from conduit_py.server.http_connection import serve_http
from conduit_py.server.limits import BodyLimit, ConnectionLimit, LimitedConnection, LimitedListener
from conduit_py.server.service import Service

log = logging.getLogger("conduit_py.server")

GRACE_SECONDS = 3.0
"""How long requests under way may take once the server ends."""


@dataclass(frozen=True)
class ServerConfig:
    """Where the API is served, and to whom."""

    host: str = HOST
    port: int = PORT
    tokens: Tokens = field(default_factory=lambda: Tokens({}))
    allowed_hosts: frozenset[str] = frozenset()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    def check(self) -> None:
        """Raise EnvironmentUnfit if the server would be unsafe, or its TLS options do not fit together."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise EnvironmentUnfit("--tls-cert and --tls-key require each other", suggestion="give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise EnvironmentUnfit("--tls-client-ca requires --tls-cert and --tls-key", suggestion="give all three")
        if self.public and not len(self.tokens):
            raise EnvironmentUnfit(
                f"other machines could reach {self.host} and operate every pipeline without a token",
                suggestion=f"give --token-file or {VARIABLE}, or bind {HOST}",
            )

    @property
    def public(self) -> bool:
        """Whether other machines may be able to reach it. A name other than localhost counts as such."""
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"

    @property
    def policy(self) -> Policy:
        # Host headers are compared in lower case.
        names = {self.host.lower(), *(name.lower() for name in self.allowed_hosts)}
        return Policy(self.tokens, frozenset(names), any_address=self.public)


async def serve_api(
    service: Service,
    config: ServerConfig,
    until: trio.Event,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the API until the event; requests under way then have `GRACE_SECONDS`. `task_status` gets its URL.

    Raises EnvironmentUnfit, with nothing served, when it would be unsafe or the address is not available.
    Set `service.closing` some time before `until`: it ends the streams, which would otherwise use up the grace.
    """
    config.check()
    app = create_app(service, config.policy)
    door = ConnectionLimit(partial(serve_http, app))
    # Before a port is bound: wrong TLS files must not leave a server that listens and cannot answer.
    encrypted = _tls(config)
    # Bound before the URL is known to anybody, because port 0 means any free port.
    listeners = await _listen(config)
    url = _url(config, listeners[0])
    _warn_of_plain_text(config)
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        limited = [_limit_connections(listener, encrypted) for listener in listeners]
        accepting.start_soon(partial(trio.serve_listeners, handler_nursery=connections), door, limited)
        accepting.start_soon(app.state.history.follow, service.fleet)
        task_status.started(url)
        await until.wait()
        # Two nurseries: connections that have a request go on while no new one is accepted.
        accepting.cancel_scope.cancel()
        door.end_all()
        connections.cancel_scope.deadline = trio.current_time() + GRACE_SECONDS


class _Api(FastAPI):
    """Describes the tokens too. They are checked before the framework gets a request, so it cannot describe them."""

    def __init__(self, policy: Policy, **options: Any) -> None:
        self._policy = policy
        super().__init__(**options)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            about = "A token of the server, with the role read, operate or admin."
            schemes = {"token": {"type": "http", "scheme": "bearer", "description": about}}
            document.setdefault("components", {})["securitySchemes"] = schemes
            needs: list[dict[str, list[str]]] = [{"token": []}] if len(self._policy.tokens) else [{"token": []}, {}]
            for path, operations in document["paths"].items():
                if path not in self._policy.open_paths:
                    for operation in operations.values():
                        operation["security"] = needs
        return super().openapi()


def create_app(service: Service, policy: Policy) -> FastAPI:
    """The whole API. A request passes the access check first, then the body limit, then the error boundary."""
    app = _Api(
        policy,
        title="conduit-py",
        version=__version__,
        description="See and operate the pipelines of a server. Errors have a stable code.",
        openapi_url="/api/v1/openapi.json",
        # The pages that come along load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.live = live.LiveEvents()
    app.state.history = monitoring.ChartHistory()
    app.state.taps = taps.TapCount()
    app.state.scrapes = monitoring.Scrapes()
    modules = (access, pipelines, dead_letters, taps, live, monitoring, web)
    further = (
        pipelines.reload_router,
        pipelines.plugin_router,
        pipelines.position_router,
        pipelines.source_router,
        monitoring.history_router,
    )
    routers = [*(module.router for module in modules), *further]
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    # Given all routes: for a wrong method the framework names only those of the first route with the path.
    handle_errors(app, service.redaction, routes)
    # The layer that is added last is passed first: no body is read before the token was checked.
    for layer in (UnexpectedErrors, BodyLimit):
        app.add_middleware(layer)
    app.add_middleware(Hooks, service=service)
    app.add_middleware(AccessCheck, policy=policy)
    return app


async def _listen(config: ServerConfig) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(config.port, host=config.host)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvironmentUnfit(
            f"cannot listen on {config.host} port {config.port}: {reason}",
            suggestion="choose another with --host and --port; port 0 is any free one",
        ) from error


def _limit_connections(
    listener: trio.SocketListener, encrypted: ssl.SSLContext | None
) -> trio.abc.Listener[LimitedConnection | trio.SSLStream[LimitedConnection]]:
    limited = LimitedListener(listener)
    return trio.SSLListener(limited, encrypted, https_compatible=True) if encrypted else limited


def _url(config: ServerConfig, listener: trio.SocketListener) -> str:
    host, port = listener.socket.getsockname()[:2]
    scheme = "https" if config.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _tls(config: ServerConfig) -> ssl.SSLContext | None:
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Older versions are broken, but some OpenSSL builds still allow them.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_client_ca is not None:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # SSLError is one
        raise EnvironmentUnfit(
            f"the TLS files cannot be used: {error.strerror or error}",
            suggestion="check --tls-cert, --tls-key and --tls-client-ca: PEM files, and the key of the certificate",
        ) from error
    return context


def _warn_of_plain_text(config: ServerConfig) -> None:
    if config.public and config.tls_cert is None:
        log.warning(
            "tokens and data are sent to %s unencrypted: give --tls-cert and --tls-key, or put a TLS proxy in front",
            config.host,
        )
