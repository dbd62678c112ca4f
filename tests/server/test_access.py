"""Who gets in: every route with every role, names and origins, path tricks, and whatever else one may send."""

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message, Scope
from trio.testing import MockClock

from conduit_py.server.access import HEADERS, OPEN_PATHS, AccessCheck, Policy, Role, Tokens, host_name

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite

UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}
REFUSED = {400, 401, 403}
TAP = "/api/v1/pipelines/a/nodes/to/tap"


def routes(app: Any) -> list[tuple[str, str]]:
    """Every method and path that the application answers, its own document among them."""
    found = []
    for route in app.routes:
        if hasattr(route, "original_router"):
            found += routes(route.original_router)
            continue
        path = route.path.replace("{letter:letter}", "a" * 16).replace("{id}", "a").replace("{source}", "source")
        path = path.replace("{node}", "to").replace("{kind}", "source").replace("{name}", "file")
        found += [(method, path) for method in sorted(route.methods)]
    return found


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


async def test_every_route_with_every_role(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    async with open_site("a", policy=guarded) as site:
        site.service.closing.set()  # so that the live stream ends by itself
        table = routes(site.app)
        seen = {}
        for method, path in table:
            for role in (None, *Role):
                token = tokens[role] if role else None
                answer = await site.client.request(method, path, headers=bearer(token))
                seen[method, path, role] = answer.status_code

    assert len(table) > 10
    assert {path for _, path in table} >= {TAP, "/api/v1/live", "/api/v1/openapi.json", *OPEN_PATHS}
    for (method, path, role), status in seen.items():
        operated = method in UNSAFE or path.endswith("/tap") or path == f"/api/v1/dead-letters/{'a' * 16}"
        needed = Role.OPERATE if operated else None if path in OPEN_PATHS else Role.READ
        needed = Role.ADMIN if path == "/api/v1/reload" else needed
        if needed is None or (role is not None and role >= needed):
            assert status not in REFUSED, (method, path, role)
        else:
            assert status == (401 if role is None else 403), (method, path, role)


async def test_unsafe_requests_to_what_is_not_known_need_an_admin(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    async with open_site("a", policy=guarded) as site:
        statuses = {
            (method, path, role): (await site.client.request(method, path, headers=bearer(tokens[role]))).status_code
            for method in ("POST", "OPTIONS", "TRACE", "PROPFIND")
            for path in ("/healthz", "/api/v1/plugins", "/api/v1/pipelines", "/new")
            for role in Role
        }

    for (_, _, role), status in statuses.items():
        assert status in ((404, 405) if role is Role.ADMIN else (403,))


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/",
        "//healthz",
        "/healthz//",
        "/./healthz",
        "/x-healthz",
        "/healthz-x",
        "/api/v1/pipelines/healthz",
        "/api/v1/pipelines/x/healthz",
        "/api/v1/pipelines/..%2f..%2f..%2fhealthz",
        "/healthz%2f..%2fapi%2fv1%2fpipelines",
        "/healthz/../api/v1/pipelines",
        "/healthz;/api/v1/pipelines",
        "/healthz%00",
        "/healthz%20",
        "/HEALTHZ",
        "/api/v1/pipelines?/healthz",
        "/api/v1/pipelines#/healthz",
        "/%2e%2e/healthz",
        "//",
        "/page.js/",
        "/page.js/../api/v1/pipelines",
        "/PAGE.CSS",
        "/page",
        "/index.html",
        "",
    ],
)
async def test_a_path_that_only_looks_open_is_closed(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, path: str
) -> None:
    """Sent as bytes: a client library would tidy these paths up."""
    async with open_site("a", policy=guarded) as site:
        status = await call(site.app, path=path)

    assert status == 401


@pytest.mark.parametrize("path", [TAP, "/", "/page.js", "/healthz", "/api/v1/pipelines"])
async def test_a_line_break_at_the_end_makes_it_another_path(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str], path: str
) -> None:
    async with open_site("a", policy=guarded) as site:
        site.service.closing.set()  # so that a tap that was let through ends by itself
        statuses = {
            role: await call(
                site.app,
                path=f"{path}\n",
                headers=[(b"host", b"localhost"), (b"authorization", f"Bearer {tokens[role]}".encode())],
            )
            for role in Role
        }

    assert statuses == dict.fromkeys(Role, 404)


async def call(app: Any, *, method: str = "GET", path: str = "/api/v1/pipelines", headers: Any = None) -> int:
    """The status of a request that reaches the application just as it is given."""
    raw, _, query = path.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.1"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": httpx2.QueryParams(f"p={raw.replace('+', '%2B').replace('&', '%26').replace(';', '%3B')}")["p"],
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost:8080")] if headers is None else headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    statuses = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    (status,) = statuses
    return int(status)


async def test_a_websocket_without_a_token_is_closed_and_one_with_a_token_is_let_through(
    guarded: Policy, tokens: dict[Role, str]
) -> None:
    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def answer(*headers: tuple[bytes, bytes]) -> str:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def no_more() -> Message:
            await trio.sleep_forever()
            return {}

        scope = {"type": "websocket", "path": "/healthz", "headers": [(b"host", b"localhost"), *headers]}
        await AccessCheck(inner, guarded)(scope, no_more, send)
        (message,) = sent
        return str(message["type"])

    token = (b"authorization", f"Bearer {tokens[Role.READ]}".encode())
    assert await answer() == "websocket.close"
    assert await answer(token) == "websocket.accept"
    assert await answer(token, (b"origin", b"http://elsewhere.example")) == "websocket.close"
    assert await answer(token, (b"origin", b"http://localhost")) == "websocket.accept"


async def test_without_tokens_everybody_on_this_machine_gets_in(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with open_site("a") as site:
        answer = await site.client.post("/api/v1/pipelines/a/start")

    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("127.8.9.1", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("conduit.internal:8080", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("192.168.0.1", False),
        ("0.0.0.0:8080", False),
        ("localhost:8080@evil.example", False),
        ("localhost, evil.example", False),
        ("::1", False),
        ("", False),
        (":8080", False),
    ],
)
async def test_only_hosts_that_are_allowed_are_answered(
    autojump_clock: MockClock, open_site: "OpenSite", host: str, known: bool
) -> None:
    async with open_site("a", policy=Policy(names=frozenset({"conduit.internal"}))) as site:
        status = await call(site.app, headers=[(b"host", host.encode())])

    assert status == (200 if known else 400)


async def test_no_host_or_two_hosts_are_refused_also_on_open_paths(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    host = (b"host", b"localhost")
    async with open_site("a") as site:
        assert await call(site.app, path="/healthz", headers=[]) == 400
        assert await call(site.app, path="/healthz", headers=[host, (b"host", b"evil.example")]) == 400
        assert await call(site.app, path="/healthz", headers=[host]) == 200


def test_a_server_that_others_can_reach_may_be_called_by_any_address_but_not_by_any_name() -> None:
    policy = Policy(any_address=True)

    assert policy.accepts_host("10.1.2.3:8080")
    assert policy.accepts_host("[fd00::1]:8080")
    assert not policy.accepts_host("evil.example")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8080", True),
        ("https://localhost:8080", True),
        ("http://localhost", False),
        ("http://localhost:8081", False),
        ("http://evil.example", False),
        ("http://localhost:8080.evil.example", False),
        ("null", False),
        ("", False),
        ("file://", False),
    ],
)
async def test_pages_of_other_sites_change_nothing(
    autojump_clock: MockClock, open_site: "OpenSite", origin: str | None, allowed: bool
) -> None:
    headers = [(b"host", b"localhost:8080")] + ([] if origin is None else [(b"origin", origin.encode())])
    async with open_site("a") as site:
        status = await call(site.app, method="POST", path="/api/v1/pipelines/a/start", headers=headers)
        assert site.service.fleet["a"].running is allowed

    assert status == (202 if allowed else 403)


async def test_every_answer_has_the_security_headers(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy
) -> None:
    async with open_site("a", policy=guarded) as site:
        answers = [await site.client.get(path) for path in ("/healthz", "/nowhere", "/api/v1/pipelines")]

    assert [answer.status_code for answer in answers] == [200, 401, 401]
    for answer in answers:
        for name, value in HEADERS:
            assert answer.headers[name.decode()] == value.decode()
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    assert answers[1].headers["www-authenticate"] == "Bearer"


TOKEN = "correct-horse-battery-staple"
near_misses = st.sampled_from(
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        f"Bearer{TOKEN}",
        f"Token {TOKEN}",
        f"Bearer Bearer {TOKEN}",
        f"Bearer {TOKEN}\x00",
        f'Bearer "{TOKEN}"',
        f"Bearer ={TOKEN}",
    ]
)
values = st.one_of(near_misses.map(lambda text: text.encode("latin-1")), st.binary(max_size=80))
names = st.sampled_from(
    [b"authorization", b"proxy-authorization", b"x-forwarded-for", b"x-api-key", b"cookie", b"x-original-url"]
)
paths = st.one_of(
    st.sampled_from(["/api/v1/pipelines", "/api/v1/live", "/healthz/", "/api/v1/pipelines/a/start"]),
    st.text(max_size=30).map(lambda text: "/" + text),
)


@settings(max_examples=500, deadline=None)
@given(
    headers=st.lists(st.tuples(names, values), max_size=4),
    path=paths,
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "get", "TRACE", ""]),
)
def test_no_headers_paths_or_methods_let_anybody_in_without_the_token(
    headers: list[tuple[bytes, bytes]], path: str, method: str
) -> None:
    inside = []

    async def inner(scope: Scope, receive: Any, send: Any) -> None:
        inside.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    policy = Policy(Tokens({TOKEN: Role.ADMIN}))
    trio.run(lambda: _reach(AccessCheck(inner, policy), method, path, headers))

    assert set(inside) <= OPEN_PATHS


async def _reach(app: AccessCheck, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()

    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"localhost"), *headers]}
    await app(scope, receive, send)


@given(st.text(max_size=40))
def test_a_host_name_is_never_more_than_one_name(host: str) -> None:
    name = host_name(host)

    assert name is None or (name == name.lower() and name != "")


def test_the_routes_are_all_http_routes_that_the_table_test_sees() -> None:
    from conduit_py.server import live, monitoring, pipelines

    routers = [module.router for module in (live, monitoring, pipelines)]
    for router in (*routers, pipelines.reload_router, pipelines.plugin_router, pipelines.position_router):
        assert router.routes
        assert all(isinstance(route, APIRoute) for route in router.routes)


async def test_a_token_is_shown_its_role(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    async with open_site("a", policy=guarded) as site:
        roles = {
            role: (await site.client.get("/api/v1/access", headers=bearer(token))).json()["role"]
            for role, token in tokens.items()
        }
        stranger = await site.client.get("/api/v1/access")

    assert roles == {Role.READ: "read", Role.OPERATE: "operate", Role.ADMIN: "admin"}
    assert stranger.status_code == 401


async def test_without_tokens_everybody_is_an_admin(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with open_site("a") as site:
        answer = await site.client.get("/api/v1/access")

    assert answer.json() == {"role": "admin"}
