"""What processors publish, forwarded by the pipeline itself: `Pipeline(outbox={target: connector})`."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from conduit_connectors import file, memory
from trio.testing import MockClock
from warm_python import WarmPython

from conduit_py import Batch, Destination, Pipeline, PipelineInvalid, Record, Source, State, processor, sdk
from conduit_py.graph.compile import compile_pipeline
from conduit_py.graph.guarantees import guarantees
from conduit_py.graph.node import Graph
from conduit_py.lifecycle.definition_diff import DefinitionDiff, diff_definitions
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk.destination import Refusals
from conduit_py.spark.engine.split import PipelineSplit
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.sqlite.store import SqliteStore
from conduit_py.store.store import Store
from conduit_py.testing import run_to_end
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)

CHILD = Path(__file__).with_name("pipeline_forwarder_child.py")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        async with await SqliteStore.open(tmp_path / "state") as opened:
            yield opened


@processor(state=True)
def announcing(record: Record, state: State) -> Record:
    """Publishes every record as mail, and every third for the press too."""
    n = record.payload["n"]
    state.publish("mail", Record.of({"n": n}))
    if n % 3 == 0:
        state.publish("press", Record.of({"n": n}))
    return record


class Counted(FakeKeyedDestination):
    """Keeps the order in which messages came, repeats included, and the keys they came under."""

    came: list[tuple[bytes, int]]
    away: bool = False

    async def write(self, batch: Batch) -> Refusals | None:
        if self.away:
            raise OSError("nobody is there")
        self.came.append((batch.delivery_key(0), int(batch[0].payload["n"])))
        return await super().write(batch)

    def fresh(self) -> "Counted":
        return self


def counted(storage: FakeStorage | None = None, **more: Any) -> Counted:
    made = Counted(storage=storage or FakeStorage(), **more)
    made.came = []
    return made


def pipeline(
    count: int, outbox: Any, storage: FakeStorage | None = None, endless: bool = False, **more: Any
) -> Pipeline:
    source = Endless(records=count) if endless else memory.Source(records=[{"n": n} for n in range(count)])
    return Pipeline(
        "p",
        sources=[Source("s", source)],
        destinations=[Destination("d", FakeTransactionalDestination(storage=storage or FakeStorage()))],
        **({"processors": [announcing], "delivery": "exactly_once", "outbox": outbox} | more),
    )


class EndlessOptions(sdk.Options):
    """How many numbers come before it waits."""

    records: int


class Endless(sdk.SourceConnector[EndlessOptions]):
    """Numbers, and then nothing more, without an end."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._next = 0 if position is None else int(position) + 1

    async def read(self, n: int) -> list[Record]:
        if self._next == self.options.records:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self._next += 1
        return [Record.of({"n": self._next - 1}, position=b"%d" % (self._next - 1))]


def numbers(target: Counted) -> list[int]:
    return [n for _, n in target.came]


async def test_what_is_published_arrives_in_order_before_the_run_is_over(store: Store) -> None:
    mail, press = counted(), counted()
    outcome = await run_to_end(pipeline(100, {"mail": mail, "press": press}), store)

    assert outcome.status is Status.COMPLETED
    assert numbers(mail) == list(range(100))
    assert numbers(press) == list(range(0, 100, 3))
    assert len({key for key, _ in mail.came + press.came}) == 134
    assert await store.outbox.targets() == []


async def test_published_records_with_one_position_are_still_distinguished(store: Store) -> None:
    """Destinations may know messages by owner and position, as they may by delivery key."""

    @processor(state=True)
    def alike(record: Record, state: State) -> Record:
        state.publish("mail", Record.of({"n": record.payload["n"]}, position=b"same"))
        return record

    class Named(Counted):
        names: set[tuple[tuple[str, str], bytes]]

        async def write(self, batch: Batch) -> Refusals | None:
            assert batch[0].position == b"same"
            self.names.add((batch.owner, batch.positions[0]))
            return await super().write(batch)

    mail = Named(storage=FakeStorage())
    mail.came, mail.names = [], set()
    await run_to_end(pipeline(10, {"mail": mail}, processors=[alike]), store)

    assert (len(mail.came), len(mail.names)) == (10, 10)


async def test_it_arrives_while_the_pipeline_runs_right_after_its_commit(autojump_clock: MockClock) -> None:
    mail, press = counted(), counted()
    supervisor = Supervisor(pipeline(6, {"mail": mail, "press": press}, endless=True), MemoryStore())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(0.5)
        assert (numbers(mail), numbers(press)) == ([0, 1, 2, 3, 4, 5], [0, 3])
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED


async def test_a_file_is_flushed_before_a_message_counts_as_sent(store: Store, tmp_path: Path) -> None:
    mail = file.Destination(path=tmp_path / "mail.jsonl", format="json")
    await run_to_end(pipeline(20, {"mail": mail, "press": counted()}), store)

    assert len((tmp_path / "mail.jsonl").read_text().splitlines()) == 20
    assert await store.outbox.targets() == []


async def test_a_target_that_is_away_holds_up_neither_the_pipeline_nor_the_others_and_gets_it_from_the_next_run(
    store: Store,
) -> None:
    mail, press, storage = counted(), counted(), FakeStorage()
    mail.away = True
    first = await run_to_end(pipeline(30, {"mail": mail, "press": press}, storage), store)
    assert (first.status, numbers(mail), numbers(press)) == (Status.COMPLETED, [], list(range(0, 30, 3)))
    assert await store.outbox.targets() == ["mail"]
    mail.away = False
    await run_to_end(pipeline(30, {"mail": mail, "press": press}, storage), store)

    assert numbers(mail) == list(range(30))
    assert numbers(press) == list(range(0, 30, 3))
    assert storage.visible == list(range(30))


async def test_a_record_that_its_target_refuses_is_kept_and_so_are_those_behind_it(autojump_clock: MockClock) -> None:
    refuses = {7}
    mail, store, storage = counted(refuses=refuses), MemoryStore(), FakeStorage()
    await run_to_end(pipeline(10, {"mail": mail, "press": counted()}, storage), store)
    arrived = list(mail.storage.by_key.values())
    refuses.clear()
    await run_to_end(pipeline(10, {"mail": mail, "press": counted()}, storage), store)

    assert arrived == list(range(7))
    assert list(mail.storage.by_key.values()) == list(range(10))


class Stuck(Counted):
    """Takes for ever."""

    begun: trio.Event

    async def write(self, batch: Batch) -> Refusals | None:
        self.begun.set()
        await trio.sleep_forever()
        return None


async def test_what_was_not_sent_when_a_run_was_cut_short_is_sent_by_the_next_one_at_once(store: Store) -> None:
    stuck, mail, storage = Stuck(storage=FakeStorage()), counted(), FakeStorage()
    stuck.begun = trio.Event()
    supervisor = Supervisor(pipeline(10, {"mail": stuck, "press": counted()}, storage), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await stuck.begun.wait()
        supervisor.force()
    assert supervisor.state.status is Status.STOPPED
    started = trio.current_time()
    await run_to_end(pipeline(10, {"mail": mail, "press": counted()}, storage), store)

    # The lease was let go of, or this would have taken as long as one lasts.
    assert trio.current_time() - started < 4
    assert numbers(mail) == list(range(10))


async def test_a_graceful_stop_sends_everything_that_is_committed(autojump_clock: MockClock) -> None:
    class Slow(Counted):
        async def write(self, batch: Batch) -> Refusals | None:
            await trio.sleep(0.1)
            return await super().write(batch)

    slow, store = Slow(storage=FakeStorage()), MemoryStore()
    slow.came = []
    supervisor = Supervisor(pipeline(50, {"mail": slow, "press": counted()}, endless=True), store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        assert 0 < len(slow.came) < 20
        supervisor.stop()

    assert supervisor.state.status is Status.STOPPED
    assert numbers(slow) == list(range(50))


async def test_a_pipeline_without_an_outbox_leaves_it_to_others(store: Store) -> None:
    await run_to_end(pipeline(3, None), store)

    assert await store.outbox.targets() == ["mail", "press"]


class TestProblems:
    async def test_a_target_that_the_outbox_does_not_have_ends_the_run_by_name(self, autojump_clock: MockClock) -> None:
        outcome = await run_to_end(pipeline(3, {"mial": counted(), "press": counted()}))

        assert outcome.status is Status.DEGRADED
        assert outcome.error is not None
        assert outcome.error.node == "announcing"
        assert outcome.error.message == "there is no target 'mail' in the outbox of the pipeline"
        assert outcome.error.suggestion == "did you mean 'mial'?; others must be added to outbox={…}"

    @pytest.mark.parametrize(
        ("outbox", "problem"),
        [
            ({"mail": 5}, ("outbox.mail.connector", "must be a destination connector, not 5")),
            ({"": FakeKeyedDestination(storage=FakeStorage())}, ("outbox", "a target must have a name, not ''")),
            ([1], ("outbox", "must be a mapping, not [1]")),
            ({"mail": FakeKeyedDestination(walt=1)}, ("outbox.mail.walt", "there is no such option")),
        ],
    )
    def test_are_found_before_anything_starts(self, outbox: Any, problem: tuple[str, str]) -> None:
        with pytest.raises(PipelineInvalid) as invalid:
            compile_pipeline(pipeline(1, outbox))

        assert problem in [(each.path, each.message) for each in invalid.value.problems]

    def test_an_outbox_without_transactions(self) -> None:
        declared = pipeline(1, {"mail": counted()}, delivery="at_least_once", processors=[])
        with pytest.raises(PipelineInvalid, match="outbox: applies only to an exactly-once pipeline"):
            compile_pipeline(declared)

    async def test_a_connector_that_cannot_be_opened_is_named(self, autojump_clock: MockClock) -> None:
        class Closed(FakeStagedDestination):
            async def open(self) -> None:
                raise sdk.FatalError("there is no post office")

        outcome = await run_to_end(pipeline(1, {"mail": Closed(storage=FakeStorage()), "press": counted()}))

        assert outcome.error is not None
        assert (outcome.error.node, outcome.error.message) == ("outbox:mail", "there is no post office")


def test_check_and_describe_say_what_is_promised_at_each_target() -> None:
    graph = compile_pipeline(pipeline(1, {"mail": counted(), "lines": FakeStagedDestination(storage=FakeStorage())}))
    said = {(each.source, each.destination): each.promise for each in guarantees(graph)}

    assert said == {
        ("s", "d"): "exactly once",
        ("outbox", "mail"): "effectively once",
        ("outbox", "lines"): "at least once",
    }


def test_executors_of_spark_have_no_outbox_and_the_driver_has() -> None:
    split = PipelineSplit(compile_pipeline(pipeline(1, {"mail": counted()})))
    executed = compile_pipeline(split.executor_pipeline()).pipeline

    assert (executed.delivery, executed.outbox) == ("at_least_once", {})
    assert list(split.graph.pipeline.outbox) == ["mail"]


def test_an_outbox_that_changes_is_a_difference_and_one_that_does_not_is_none(tmp_path: Path) -> None:
    def made(name: str) -> Graph:
        mail = file.Destination(path=tmp_path / name)
        source = Source("s", file.Source(path=tmp_path / "in"))
        destination = Destination("d", file.Destination(path=tmp_path / "out"))
        return compile_pipeline(
            Pipeline(
                "p",
                sources=[source],
                destinations=[destination],
                delivery="exactly_once",
                outbox={"mail": mail},
            )
        )

    assert diff_definitions(made("a"), made("a")) == DefinitionDiff()
    assert diff_definitions(made("a"), made("b")) == DefinitionDiff(restart_reason="the settings")


@pytest.mark.parametrize("kill_at", ["transaction.after_commit:2", "forwarder.sent:1"])
def test_me_17_killed_between_publishing_and_forwarding(tmp_path: Path, kill_at: str) -> None:
    def run(kill: str = "") -> int:
        command = [sys.executable, str(CHILD), str(tmp_path)]
        return WarmPython(command, env=os.environ | {"CONDUIT_KILL_AT": kill}).wait(300)

    killed, ended = run(kill_at), run()
    lines = (tmp_path / "mail.txt").read_text().splitlines()
    once = dict(line.split() for line in lines)

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert list(once.values()) == [str(n) for n in range(200)]
    rows = [json.loads(line)["n"] for line in (tmp_path / "rows.txt").read_text().splitlines()]
    assert rows == list(range(200))
