"""Access: tokens and their roles, and the one check that every request passes before any route sees it."""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.requests import HTTPConnection, Request
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conduit_py.errors import EnvironmentUnfit
from conduit_py.server.errors import error_response, error_responses
from conduit_py.server.limits import ADMIT
from conduit_py.server.views import ApiModel
from conduit_py.server.web import PATHS
from conduit_py.wire_error import WireError

router = APIRouter(prefix="/api/v1/access", tags=["access"])

VARIABLE = "CONDUIT_API_TOKEN"
LENGTH_MIN = 20
ROLE = "conduit_py.role"
"""The key under which the scope of a request has the role of its token."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what may follow "Bearer" in a header


class Role(IntEnum):
    """What a token allows; each role includes those before it."""

    READ = 1
    """Look at everything."""
    OPERATE = 2
    """Start, stop and restart pipelines, and set positions."""
    ADMIN = 3
    """Everything."""


class Tokens:
    """The tokens of a server. Only their digests are kept, and every look-up takes the same time."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        # Digests have one length: comparing tokens of different lengths would take different times.
        self._roles = [(_digest(token), role) for token, role in roles.items()]

    def __len__(self) -> int:
        return len(self._roles)

    def role_of(self, token: str) -> Role | None:
        """The role of a token, or None for one that is not among them."""
        digest, found = _digest(token), None
        # No early return: the time of an answer must not show where in the list a token stands.
        for known, role in self._roles:
            if hmac.compare_digest(digest, known):
                found = role
        return found


def load_tokens(file: Path | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """The tokens of a file, and the one in CONDUIT_API_TOKEN, which is an admin's. There may be none."""
    roles = _read(file) if file is not None else {}
    token = environment.get(VARIABLE, "").strip()
    if token:
        _check(token, VARIABLE)
        roles[token] = Role.ADMIN
    return Tokens(roles)


def _read(file: Path) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for number, line in enumerate(_private_text(file).splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            role, token = _parse(words, f"{file}:{number}")
            if token in roles:
                raise _unfit(f"{file}:{number}: this token stands in an earlier line too", "give each role its own")
            roles[token] = role
    if not roles:
        raise _unfit(f"{file} has no token", "write a line such as `operate TOKEN`")
    return roles


def _private_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            # The open file is checked, not its path: another file could be put there between check and read.
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unfit(f"token file {file} is not a regular file", "name a file")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise _unfit(f"token file {file} can be used by others (mode {mode:04o})", f"chmod 600 {file}")
            return opened.read(1024 * 1024).decode()
    except OSError as error:
        raise _unfit(f"token file {file} cannot be read: {error.strerror}", "check its path and owner") from error
    except UnicodeDecodeError as error:
        raise _unfit(f"token file {file} is not text", "write lines such as `operate TOKEN`") from error


def _parse(words: list[str], place: str) -> tuple[Role, str]:
    if len(words) != 2:
        raise _unfit(f"{place}: a line has a role and a token, not {len(words)} words", "write `operate TOKEN`")
    name, token = words
    if name not in ("read", "operate", "admin"):
        raise _unfit(f"{place}: there is no such role", "roles are read, operate and admin")
    _check(token, place)
    return Role[name.upper()], token


def _check(token: str, place: str) -> None:
    # The token itself is in no message: messages end up in logs.
    if len(token) < LENGTH_MIN or not _TOKEN.fullmatch(token):
        what = f"a token has at least {LENGTH_MIN} letters, digits or any of ._~+/- and may end in ="
        raise _unfit(f"{place}: {what}", 'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`')


def _unfit(message: str, suggestion: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(message, suggestion=suggestion)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


OPEN_PATHS = frozenset({"/healthz", "/readyz", *PATHS})
"""What may be read without a token: these very paths, not what begins or ends like them."""
HOOKS_PATH = "/hooks/"
"""Below it, sources take requests; they check signatures of their own, and no token is needed."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
OPERATED = ("/api/v1/pipelines/", "/api/v1/dead-letters/")
CONTENTS = re.compile(r"/api/v1/(pipelines/[^/]+/nodes/[^/]+/tap|dead-letters/(?!causes\Z)[^/]+)")
"""What shows the contents of records, so that to look at pipelines is not enough."""
LOOPBACK_NAMES = frozenset({"localhost", "localhost."})
HEADERS = [
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


@dataclass(frozen=True)
class Policy:
    """Which requests are let in. Without tokens all are, so such a server must listen on this machine only."""

    tokens: Tokens = field(default_factory=lambda: Tokens({}))
    names: frozenset[str] = frozenset()
    """Further host names under which clients may call the server."""
    any_address: bool = False
    """Whether clients may call it by any IP address: for servers that others can reach."""
    open_paths: frozenset[str] = OPEN_PATHS

    def accepts_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name = host_name(host)
        if name is None:
            return False
        # DNS rebinding: the name of a foreign page can resolve to this machine, and a browser then treats this server
        # as the origin of the page. The browser still sends the name of the page, which is refused here.
        if name in LOOPBACK_NAMES or name in self.names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback

    def required_role(self, scope: Scope) -> Role | None:
        """The role that a request needs, or None when it needs none."""
        if scope["type"] == "websocket":
            return Role.READ
        if scope["path"].startswith(HOOKS_PATH):
            return None
        if scope["method"] in SAFE_METHODS and not CONTENTS.fullmatch(scope["path"]):
            return None if scope["path"] in self.open_paths else Role.READ
        # A path that is not listed needs the highest role: a new route is closed until somebody opens it.
        return Role.OPERATE if scope["path"].startswith(OPERATED) else Role.ADMIN


class AccessCheck:
    """Lets a request pass when its host, origin and token are right, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            self._admit(scope)
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            status, error = refusal
            headers = {"www-authenticate": "Bearer"} if status == 401 else None
            await error_response(status, error, headers)(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1].code})

    def _admit(self, scope: Scope) -> None:
        """Tell the connection that its request was let in. What anybody may ask for is no such request."""
        admit = scope.get("extensions", {}).get(ADMIT)
        if admit is not None and self._policy.required_role(scope) is not None:
            admit()

    def _refusal(self, scope: Scope) -> tuple[int, WireError] | None:
        # The host before the token: a page on a rebound name must not be able to try tokens.
        host = _only(scope, b"host")
        if host is None or not self._policy.accepts_host(host):
            hint = "call it by its address, or allow the name with --allow-host"
            return 400, WireError("host.refused", "this server does not accept that host name", suggestion=hint)
        if not _same_origin(scope, host):
            return 403, WireError("origin.refused", "pages of other sites may not change anything here")
        return self._token_refusal(scope) or _path_refusal(scope)

    def _token_refusal(self, scope: Scope) -> tuple[int, WireError] | None:
        required_role = self._policy.required_role(scope)
        if required_role is None or not len(self._policy.tokens):
            return None
        token = _bearer(_only(scope, b"authorization"))
        role = self._policy.tokens.role_of(token) if token is not None else None
        if role is None:
            hint = "send the header `Authorization: Bearer TOKEN`"
            return 401, WireError("access.token_missing", "a valid token is needed", suggestion=hint)
        if role < required_role:
            message = f"this needs a token with the role {required_role.name.lower()}"
            return 403, WireError("access.refused", message)
        # For the log, which says who asked for a change, and for `show_access`.
        scope[ROLE] = role
        return None


class AccessView(ApiModel):
    """What the token of a request allows."""

    role: Literal["read", "operate", "admin"] = Field(description="without tokens every request has the role admin")


@router.get("", responses=error_responses())
async def show_access(request: Request) -> AccessView:
    """The role of the token that comes with the request, so that a client need not offer what it may not do."""
    return AccessView.model_validate({"role": (await _find_role(request)).name.lower()})


async def _find_role(connection: HTTPConnection) -> Role:
    # Only a server without tokens lets a request pass that has no role.
    return Role(connection.scope.get(ROLE, Role.ADMIN))


AllowedRole = Annotated[Role, Depends(_find_role)]
"""The type of a route's parameter that receives the role of the request, where the path alone does not decide."""


async def _asked_by(connection: HTTPConnection) -> str:
    role = connection.scope.get(ROLE)
    return "API, without a token" if role is None else f"API, role {role.name.lower()}"


AskedBy = Annotated[str, Depends(_asked_by)]
"""The type of a route's parameter that receives who asks, for the log: never the token, only its role."""


def _path_refusal(scope: Scope) -> tuple[int, WireError] | None:
    """Refuse a path with a line break or another control character."""
    # Routes ignore a line break at the end of a path, so they would match a path that the role was not checked for.
    if scope["path"].isprintable():
        return None
    return 404, WireError("path.unknown", "Not Found")


def host_name(host: str) -> str | None:
    """The name or address in a Host header, in lower case and without port or brackets; None if it is no such thing."""
    name, colon, port = host.strip().lower().rpartition(":") if not host.endswith("]") else (host.lower(), "", "")
    if not colon:
        name = name or port
        port = ""
    if colon and not (port.isascii() and port.isdigit()):
        return None
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    return name if name and ":" not in name else None


def _same_origin(scope: Scope, host: str) -> bool:
    """Whether the request comes from no page at all, from one of ours, or cannot change anything."""
    if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
        return True
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    # A browser names the origin of every request that changes something; commands and scripts send none.
    if not origins:
        return True
    # Not the scheme of the connection: with TLS ended before the server, the page has another one.
    return len(origins) == 1 and origins[0].lower() in (b"http://" + _raw(host), b"https://" + _raw(host))


def _raw(host: str) -> bytes:
    return host.lower().encode("latin-1")


def _only(scope: Scope, wanted: bytes) -> str | None:
    """The value of a header that is there exactly once: two could be read as one thing here and another there."""
    values = [value for name, value in scope["headers"] if name.lower() == wanted]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _bearer(authorization: str | None) -> str | None:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip(" ") or None if scheme.lower() == "bearer" else None


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            # The page has a policy and a cache rule of its own, which must stay.
            given = {name.lower() for name, _ in message.get("headers", [])}
            ours = [(name, value) for name, value in HEADERS if name not in given]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await send(message)

    return send_with_headers
