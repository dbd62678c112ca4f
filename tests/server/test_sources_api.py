"""Requests for snapshots over HTTP: who may make them, what is answered when, and what is refused."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import trio
from requested_source import RequestedSource
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Source
from conduit_py.server.access import Policy, Role
from conduit_py.server.pipelines import DURABLE_SECONDS
from conduit_py.testing import Block, ScriptedDestination

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Site

PATH = "/api/v1/pipelines/p/sources/s/snapshot"


@asynccontextmanager
async def requestable(open_site: "OpenSite", *, policy: Policy | None = None, **to: Any) -> AsyncIterator["Site"]:
    """A site with a running pipeline whose source takes requests."""
    async with open_site("a", policy=policy) as site:
        source = Source("s", RequestedSource().counting(2))
        destination = Destination("d", ScriptedDestination(name="d", log=site.log, **to))
        await site.service.fleet.add(Pipeline("p", sources=[source], destinations=[destination]))
        site.service.fleet.start("p")
        await site.wait_until_settled()
        yield site


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_the_answer_to_a_request_comes_when_it_is_durable(
    autojump_clock: MockClock, open_site: "OpenSite", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conduit_py.server")
    async with requestable(open_site) as site:
        answer = await site.client.post(PATH, json={"collection": "orders\n", "where": "id > 3"})
        position = (await site.service.fleet.positions("p"))["s"]

    assert answer.status_code == 202
    assert answer.json() == {"source": "s", "collection": "orders\n", "durable": True}
    assert json.loads(position) == [2, [["orders\n", "id > 3", 0]]]
    assert "pipeline p: snapshot of 'orders\\n' by s requested (asked by API, without a token)" in caplog.messages


async def test_a_request_that_is_not_durable_in_time_is_answered_so(
    autojump_clock: MockClock, open_site: "OpenSite"
) -> None:
    async with requestable(open_site, script={1: Block()}) as site:
        began = trio.current_time()
        answer = await site.client.post(PATH, json={"collection": "orders"})
        seconds = trio.current_time() - began
        site.service.fleet.stop("p", force=True)

    assert (answer.status_code, answer.json()["durable"]) == (202, False)
    assert seconds == pytest.approx(DURABLE_SECONDS, abs=0.5)


async def test_what_cannot_be_requested_is_refused(autojump_clock: MockClock, open_site: "OpenSite") -> None:
    async with requestable(open_site) as site:
        client = site.client
        wrong = await client.post(PATH, json={"collection": "wrong"})
        no_source = await client.post("/api/v1/pipelines/p/sources/x/snapshot", json={"collection": "t"})
        no_pipeline = await client.post("/api/v1/pipelines/x/sources/s/snapshot", json={"collection": "t"})
        not_started = await client.post("/api/v1/pipelines/a/sources/source/snapshot", json={"collection": "t"})
        site.service.fleet.start("a")
        await site.wait_until_settled()
        unable = await client.post("/api/v1/pipelines/a/sources/source/snapshot", json={"collection": "t"})
        unclear = [await client.post(PATH, json=body) for body in ({}, {"collection": ""}, {"table": "t"})]
        site.service.fleet.stop("p")
        await site.wait_until_settled()
        stopped = await client.post(PATH, json={"collection": "orders"})

    assert refusal(wrong) == (409, "snapshot.refused")
    assert wrong.json()["error"]["suggestion"] == "collections are orders"
    assert refusal(no_source) == refusal(no_pipeline) == (404, "pipeline.unknown")
    assert refusal(not_started) == refusal(stopped) == (409, "pipeline.not_running")
    assert refusal(unable) == (409, "snapshot.refused")
    assert [refusal(answer) for answer in unclear] == [(422, "request.invalid")] * 3


async def test_a_condition_needs_the_role_admin(
    autojump_clock: MockClock, open_site: "OpenSite", guarded: Policy, tokens: dict[Role, str]
) -> None:
    bodies: list[dict[str, str]] = [{"collection": "orders"}, {"collection": "orders", "where": "true"}]
    async with requestable(open_site, policy=guarded) as site:
        answers = {
            (role, "where" in body): await site.client.post(
                PATH, json=body, headers={"authorization": f"Bearer {tokens[role]}"}
            )
            for role in Role
            for body in bodies
        }

    assert {which: answer.status_code for which, answer in answers.items()} == {
        (Role.READ, False): 403,
        (Role.READ, True): 403,
        (Role.OPERATE, False): 202,
        (Role.OPERATE, True): 403,
        (Role.ADMIN, False): 202,
        (Role.ADMIN, True): 202,
    }
    assert refusal(answers[Role.OPERATE, True]) == (403, "access.refused")
