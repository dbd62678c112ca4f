"""The log of a pipeline: that it started, failed and ended, with the reason, the time of the next try and who asked."""

import json
import logging
import time
from datetime import datetime
from typing import Any

import pytest
import trio
from builders import scripted_pipeline
from trio.testing import MockClock

from conduit_py import Destination, Pipeline, Recovery, Source
from conduit_py.cli.output import JsonLogFormatter, TextLogFormatter
from conduit_py.errors import FatalError
from conduit_py.lifecycle.fleet import Fleet
from conduit_py.lifecycle.pipeline_log import EVENTS_MAX, TEXT_MAX, PipelineLog
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.redaction import SECRETS
from conduit_py.status import PipelineState, Status, Stopper
from conduit_py.store.memory import MemoryStore
from conduit_py.testing import EventLog, Fail, ScriptedDestination, ScriptedSource


def pipeline(id: str, *, bounded: bool = False, **destination: Any) -> Pipeline:
    log = EventLog()
    return Pipeline(
        id,
        sources=[Source("source", ScriptedSource(records=10, bounded=bounded, name=id, log=log))],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log, **destination))],
    )


class TableGone(FatalError):
    """An error that no other try can mend, with advice."""

    def __init__(self, message: str) -> None:
        super().__init__(message, suggestion="make it again")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def as_json(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonLogFormatter().format(record)) for record in caplog.records]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "conduit_py")


class TestRecoveries:
    """Each failure that is followed by another try is a warning; the supervisor logs it, under `run` too."""

    async def test_each_recovery_is_a_warning_with_node_code_message_and_next_try(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        recovery = Recovery(delay_seconds=10, factor=2)
        supervisor = Supervisor(
            scripted_pipeline(EventLog(), script={3: Fail("the lake is down", times=2)}),
            MemoryStore(),
            recovery=recovery,
        )
        before = time.time()
        await supervisor.run()
        first, second = [each for each in as_json(caplog) if each["level"] == "warning"]

        assert first["event"] == second["event"] == "recovering"
        assert first["pipeline"] == supervisor.pipeline.id
        assert first["node"] == "lake"
        assert first["code"] == "run.transient"
        assert "the lake is down" in first["error"]
        assert (first["failures"], second["failures"]) == (1, 2)
        assert 5 <= first["next_try_seconds"] <= 10 <= second["next_try_seconds"] <= 20
        next_try = datetime.fromisoformat(first["next_try_at"]).timestamp()
        assert before + 4 <= next_try <= time.time() + 11

    async def test_the_text_of_a_warning_says_all_of_it(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        supervisor = Supervisor(
            scripted_pipeline(EventLog(), script={3: Fail("the lake is down")}),
            MemoryStore(),
            recovery=Recovery(),
        )
        await supervisor.run()
        [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
        [fields] = [each for each in as_json(caplog) if each["level"] == "warning"]
        text = TextLogFormatter().format(warning)

        assert " WARNING conduit_py: " in text
        for part in (supervisor.pipeline.id, " lake", "[run.transient]", "the lake is down", fields["next_try_at"]):
            assert part in text

    async def test_a_pipeline_that_fails_for_hours_is_never_silent_for_longer_than_its_back_off(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        supervisor = Supervisor(
            scripted_pipeline(EventLog(), script={3: Fail("down", times=None)}),
            MemoryStore(),
            recovery=Recovery(),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(26 * 60)
            supervisor.stop()

        assert len(lines(caplog, logging.WARNING)) >= 10

    async def test_secrets_are_masked_in_every_field(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        SECRETS.add("hunter2-is-secret")
        supervisor = Supervisor(
            scripted_pipeline(EventLog(), script={3: Fail("no entry for hunter2-is-secret")}),
            MemoryStore(),
            recovery=Recovery(),
        )
        await supervisor.run()

        for record in caplog.records:
            assert "hunter2" not in JsonLogFormatter().format(record)
            assert "hunter2" not in TextLogFormatter().format(record)


class TestStartsAndEnds:
    """A fleet logs who had each pipeline started or stopped, and how each ended."""

    async def test_a_start_and_a_stop_say_who_asked(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            await fleet.add(pipeline("p"))
            await fleet.boot()
            await trio.sleep(5)
            fleet.stop("p", asked_by="API, role operate")
            await fleet["p"].ended.wait()
            await fleet.restart("p", asked_by="file reload")
            await trio.sleep(1)
            await fleet.shutdown(5, asked_by="signal")
        logged = [(each["event"], each["pipeline"], each["asked_by"], each["level"]) for each in as_json(caplog)]

        assert logged == [
            ("started", "p", "server start", "info"),
            ("stopped", "p", "API, role operate", "info"),
            ("started", "p", "file reload", "info"),
            ("stopped", "p", "signal", "info"),
        ]
        assert lines(caplog, logging.INFO)[1].startswith("pipeline p is stopped (asked by API, role operate): 10 read")

    async def test_a_shutdown_does_not_take_over_the_stop_of_a_user(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            await fleet.add(pipeline("p"))
            fleet.start("p", asked_by="API, role admin")
            await trio.sleep(5)
            fleet.stop("p", asked_by="API, role operate")
            await fleet.shutdown(5, asked_by="signal")

        assert as_json(caplog)[-1]["asked_by"] == "API, role operate"

    async def test_a_completed_pipeline_says_so_with_its_counts(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            await fleet.add(pipeline("p", bounded=True))
            await fleet.boot()
        last = as_json(caplog)[-1]

        assert (last["event"], last["level"], last["asked_by"]) == ("completed", "info", "server start")
        assert (last["read"], last["acked"], last["dead_letters"]) == (10, 10, 0)

    async def test_a_degraded_pipeline_is_an_error_with_node_code_and_message(
        self, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with trio.open_nursery() as nursery:
            fleet = Fleet(MemoryStore(), nursery)
            await fleet.add(pipeline("p", script={3: Fail("the table is gone", error=TableGone)}))
            await fleet.boot()
        [error] = [each for each in as_json(caplog) if each["level"] == "error"]
        [text] = lines(caplog, logging.ERROR)

        assert (error["event"], error["pipeline"], error["node"]) == ("degraded", "p", "lake")
        assert error["code"] == "run.fatal"
        assert "the table is gone" in error["error"]
        assert error["suggestion"] == "make it again"
        for part in ("pipeline p is degraded", "lake", "[run.fatal]", "the table is gone", "make it again"):
            assert part in text

    @pytest.mark.parametrize(
        ("status", "by", "level"),
        [
            (Status.DEGRADED, None, logging.WARNING),
            (Status.COMPLETED, None, logging.INFO),
            (Status.STOPPED, Stopper.USER, logging.INFO),
        ],
    )
    async def test_a_pipeline_that_the_server_does_not_start_is_logged(
        self, caplog: pytest.LogCaptureFixture, status: Status, by: Stopper | None, level: int
    ) -> None:
        store = MemoryStore()
        await store.save_state("p", PipelineState(status, by))
        async with trio.open_nursery() as nursery:
            fleet = Fleet(store, nursery)
            await fleet.add(pipeline("p"))
            await fleet.boot()
        [text] = lines(caplog, level)

        assert text.startswith(f"pipeline p is not started: it is {status}")


class TestEvents:
    """The last lines are kept, for the page."""

    async def test_the_last_events_are_kept_and_equal_failures_in_a_row_are_one(
        self, autojump_clock: MockClock
    ) -> None:
        log = PipelineLog("numbers")
        script = {2: Fail("the lake is down", times=5), 3: Fail("the lake is dry", times=2)}
        supervisor = Supervisor(
            scripted_pipeline(EventLog(), script=script), MemoryStore(), recovery=Recovery(retries=None), log=log
        )
        log.log_start("server start")
        state = await supervisor.run()
        log.log_end(state, supervisor.progress(), "server start")

        assert [(each.event, each.level) for each in log.events] == [
            ("started", "info"),
            ("recovering", "warning"),
            ("recovering", "warning"),
            ("completed", "info"),
        ]
        assert "failed in lake (failure 5 in a row)" in log.events[1].text
        assert "the lake is down" in log.events[1].text
        assert "the lake is dry" in log.events[2].text

    def test_events_are_bounded_and_secrets_are_masked_before_they_are_cut(self) -> None:
        log = PipelineLog("numbers")
        secret = "hunter2-" * 4
        SECRETS.add(secret)
        for number in range(EVENTS_MAX + 5):
            log.note(f"{number} " + "x" * (TEXT_MAX - 10) + secret)

        assert [each.text.partition(" ")[0] for each in log.events] == [str(n) for n in range(5, EVENTS_MAX + 5)]
        assert all(len(each.text) <= TEXT_MAX for each in log.events)
        assert not any("hunter2" in each.text for each in log.events)
