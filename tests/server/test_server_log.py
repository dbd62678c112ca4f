"""The log of a server: why pipelines fail, when they are tried again, and who had them started or stopped."""

import json
import logging
import os
import pty
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from command_folder import COMMAND
from trio.testing import MockClock

from conduit_py.cli.output import JsonLogFormatter
from conduit_py.server.access import Policy, Role

if TYPE_CHECKING:
    from tests.server.conftest import OpenSite, Server

FAILING = """
from conduit_connectors import generator
from conduit_py import Destination, FatalError, Pipeline, Recovery, Source, TransientError, sdk

class Lake(sdk.DestinationConnector[sdk.Options]):
    async def write(self, batch):
        raise {error}("the lake is away")

{id} = Pipeline(
    "{id}",
    sources=[Source("made", generator.Source(rate=100))],
    destinations=[Destination("lake", Lake())],
    recovery=Recovery(delay_seconds=0.2, delay_max_seconds=0.2),
)
"""


@pytest.mark.parametrize("role", [Role.OPERATE, Role.ADMIN, None])
async def test_the_log_has_the_role_of_who_asked_and_never_the_token(
    autojump_clock: MockClock,
    open_site: "OpenSite",
    caplog: pytest.LogCaptureFixture,
    guarded: Policy,
    tokens: dict[Role, str],
    role: Role | None,
) -> None:
    caplog.set_level(logging.INFO, "conduit_py")
    headers = {} if role is None else {"authorization": f"Bearer {tokens[role]}"}
    async with open_site("a", policy=None if role is None else guarded) as site:
        for command in ("start", "restart", "stop"):
            answer = await site.client.post(f"/api/v1/pipelines/a/{command}", headers=headers)
            assert answer.status_code == 202
            await site.wait_until_settled()
    logged = [json.loads(JsonLogFormatter().format(record)) for record in caplog.records]
    who = "API, without a token" if role is None else f"API, role {role.name.lower()}"

    assert [(each["event"], each["asked_by"]) for each in logged if "event" in each] == [
        ("started", who),
        ("stopped", who),
        ("started", who),
        ("stopped", who),
    ]
    assert [each["message"] for each in logged if "event" not in each] == [
        f"pipeline a: restart (asked by {who})",
        f"pipeline a: stop (asked by {who})",
    ]
    assert not any(token in each["message"] for token in tokens.values() for each in logged)


async def test_changes_of_positions_and_letters_and_taps_are_logged_with_the_role_of_who_asked(
    autojump_clock: MockClock,
    open_site: "OpenSite",
    caplog: pytest.LogCaptureFixture,
    guarded: Policy,
    tokens: dict[Role, str],
) -> None:
    caplog.set_level(logging.INFO, "conduit_py")
    at, headers = "/api/v1/pipelines/a/positions/source", {"authorization": f"Bearer {tokens[Role.OPERATE]}"}
    none: dict[str, list[str]] = {"ids": []}
    async with open_site("a", policy=guarded) as site:
        answers = [
            await site.client.put(at, json={"position": "AAAA"}, headers=headers),
            await site.client.delete(at, headers=headers),
            await site.client.post(f"{at}/replay", json={"from": "start"}, headers=headers),
            await site.client.post("/api/v1/dead-letters/replay", json=none, headers=headers),
            await site.client.post("/api/v1/dead-letters/discard", json=none, headers=headers),
        ]
        site.service.closing.set()  # so that the tap ends by itself
        answers.append(await site.client.get("/api/v1/pipelines/a/nodes/source/tap", headers=headers))

    assert [answer.status_code for answer in answers] == [200, 200, 200, 202, 200, 200]
    assert [record.getMessage() for record in caplog.records if record.name == "conduit_py.server"] == [
        "pipeline a: position of source set (asked by API, role operate)",
        "pipeline a: position of source reset (asked by API, role operate)",
        "pipeline a: source is to read again what came since start (asked by API, role operate)",
        "0 dead letters are sent again (asked by API, role operate)",
        "0 dead letters were discarded (asked by API, role operate)",
        "pipeline a: source is tapped (asked by API, role operate)",
    ]


def test_the_json_log_of_a_server_has_every_failure_and_every_end(server: "Server") -> None:
    server.write("again.py", FAILING.format(id="again", error="TransientError"))
    server.write("broken.py", FAILING.format(id="broken", error="FatalError"))
    running = server.start("--log-format", "json")
    running.until("again", lambda shown: shown["progress"]["recoveries"] > 1)
    running.until("broken", lambda shown: shown["status"] == "degraded")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    of = {id: [each for each in events(server) if each["pipeline"] == id] for id in ("again", "broken")}

    assert (of["again"][0]["event"], of["again"][0]["asked_by"]) == ("started", "server start")
    recoveries = [each for each in of["again"] if each["event"] == "recovering"]
    assert len(recoveries) > 1
    for each in recoveries:
        assert (each["level"], each["node"], each["code"]) == ("warning", "lake", "run.transient")
        assert "the lake is away" in each["error"]
        assert each["next_try_at"] > each["at"]
    assert (of["again"][-1]["event"], of["again"][-1]["asked_by"]) == ("stopped", "signal")
    [degraded] = [each for each in of["broken"] if each["level"] == "error"]
    assert (degraded["event"], degraded["node"], degraded["code"]) == ("degraded", "lake", "run.fatal")


def test_without_a_terminal_a_server_logs_in_json(server: "Server") -> None:
    assert _first_line(server, terminal=False).startswith(b'{"at": ')


def test_on_a_terminal_a_server_logs_text(server: "Server") -> None:
    assert b" INFO conduit_py" in _first_line(server, terminal=True)


def _first_line(server: "Server", *, terminal: bool) -> bytes:
    """The first line of the log of a server without options for its log."""
    server.write("broken.py", FAILING.format(id="broken", error="FatalError"))
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [str(COMMAND), "serve", "--pipelines", "pipelines", "--port", "0"]
    with subprocess.Popen(command, cwd=server.folder, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        with open(ours, "rb", buffering=0) as log:
            line = log.read(4096)
            process.kill()
    return line


def events(server: "Server") -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in server.log().splitlines()]
    return [each for each in logged if "event" in each]


def test_the_text_log_of_a_server_has_every_failure_and_the_next_start_says_what_it_leaves_alone(
    server: "Server",
) -> None:
    server.write("broken.py", FAILING.format(id="broken", error="FatalError"))
    running = server.start()
    running.until("broken", lambda shown: shown["status"] == "degraded")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    running = server.start()
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    levels = [line.split(" ", 2)[1:] for line in server.log().splitlines()]
    texts = {level: [text for each, text in levels if each == level] for level in ("INFO", "WARNING", "ERROR")}

    assert "conduit_py: pipeline broken is started (asked by server start)" in texts["INFO"]
    [error] = texts["ERROR"]
    assert error.startswith("conduit_py: pipeline broken is degraded: it failed in lake")
    assert "the lake is away [run.fatal]" in error
    [warning] = texts["WARNING"]
    assert warning.startswith("conduit_py: pipeline broken is not started: it is degraded")
    assert "the lake is away [run.fatal]" in warning
