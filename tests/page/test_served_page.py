"""The page as files: who gets them, with which headers, and that they hold nothing worth hiding."""

import httpx2
import pytest
import trio
from trio.testing import MockClock

from conduit_py.lifecycle.fleet import Fleet
from conduit_py.server.access import Policy, Role, Tokens
from conduit_py.server.serve import create_app
from conduit_py.server.service import Service
from conduit_py.server.web import PATHS, POLICY
from conduit_py.store.memory import MemoryStore


@pytest.fixture
async def client(nursery: trio.Nursery) -> httpx2.AsyncClient:
    """Calls a server that wants a token for everything else."""
    store = MemoryStore()
    service = Service(Fleet(store, nursery), store, nursery)
    app = create_app(service, Policy(Tokens({"t" * 30: Role.READ})))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost:8080")


@pytest.mark.parametrize("path", PATHS)
async def test_the_page_needs_no_token_and_allows_itself_little(
    path: str, client: httpx2.AsyncClient, autojump_clock: MockClock
) -> None:
    answer = await client.get(path)

    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-cache"


def test_the_policy_begins_with_nothing_and_adds_no_way_to_run_text() -> None:
    directives = dict(each.split(" ", 1) for each in POLICY.split("; "))

    assert directives["default-src"] == "'none'"
    assert directives["frame-ancestors"] == "'none'"
    assert "unsafe" not in POLICY
    assert {value for name, value in directives.items() if name.endswith("-src") and name != "default-src"} == {
        "'self'"
    }


async def test_a_browser_that_has_a_file_is_not_sent_it_again(
    client: httpx2.AsyncClient, autojump_clock: MockClock
) -> None:
    first = await client.get("/page.js")
    second = await client.get("/page.js", headers={"if-none-match": first.headers["etag"]})
    third = await client.get("/page.js", headers={"if-none-match": '"another"'})

    assert (second.status_code, second.content) == (304, b"")
    assert (third.status_code, third.content) == (200, first.content)


async def test_the_host_is_checked_for_the_page_too(client: httpx2.AsyncClient, autojump_clock: MockClock) -> None:
    answer = await client.get("/", headers={"host": "evil.example"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "host.refused")


@pytest.mark.parametrize("path", ["/index.html", "/page/page.js", "/page.js/", "/web.py"])
async def test_nothing_else_can_be_had_without_a_token(
    path: str, client: httpx2.AsyncClient, autojump_clock: MockClock
) -> None:
    assert (await client.get(path)).status_code == 401
