"""Idempotency in a pipeline: each message goes through once, or is marked when it comes again (vectors ME-*)."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from conduit_py import DeadLetters, Destination, Pipeline, PipelineInvalid, Record, Recovery, Source, processor
from conduit_py.batch import Batch
from conduit_py.idempotency.processor import Idempotency, RecentKeys
from conduit_py.idempotency.tracker import REPEATED, Repeat
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.sdk.destination import DestinationConnector as SdkDestination
from conduit_py.sdk.destination import WriteGuarantee
from conduit_py.sdk.plugin import Options
from conduit_py.status import PipelineState, Status
from conduit_py.store.memory import MemoryStore
from conduit_py.store.store import Store
from conduit_py.testing import EventLog, ScriptedDestination, ScriptedSource

NOW = Recovery(delay_seconds=0.001)


def message(id: str | None, **metadata: str) -> Record:
    record = Record.of({"id": id})
    record.metadata = metadata if id is None else {"message_id": id, **metadata}
    return record


class KeptOptions(Options):
    """Where records are kept, by delivery key: the very dictionary and list, which validation would copy."""

    kept: Any
    failures: Any = ()


class Kept(SdkDestination[KeptOptions]):
    """Idempotent by delivery key, so an exactly-once pipeline may write to it."""

    guarantee = WriteGuarantee.IDEMPOTENT

    async def write(self, batch: Batch) -> None:
        await trio.lowlevel.checkpoint()
        for index, record in enumerate(batch.records):
            self.options.kept[batch.delivery_key(index)] = record
        if self.options.failures:
            raise self.options.failures.pop()


class Bench:
    """A pipeline from numbered messages through the processor; runs share what was kept and the store."""

    def __init__(self) -> None:
        self.store: Store = MemoryStore()
        self.kept: dict[bytes, Record] = {}
        self.failures: list[Exception] = []

    async def run(
        self, records: list[Record], idempotency: Idempotency, *, id: str = "orders", **settings: Any
    ) -> PipelineState:
        pipeline = Pipeline(
            id,
            sources=[
                Source("queue", ScriptedSource(records=records), batch_size=2, window=settings.pop("window", 100))
            ],
            processors=[idempotency, *settings.pop("processors", [])],
            destinations=[Destination("lake", Kept(kept=self.kept, failures=self.failures))],
            **settings,
        )
        return await Supervisor(pipeline, self.store, recovery=NOW).run()

    def ids(self) -> list[str]:
        return [record.payload["id"] for record in self.kept.values()]

    def marks(self) -> list[str | None]:
        return [record.metadata.get(REPEATED) for record in self.kept.values()]


@pytest.fixture(params=["exactly_once", "at_least_once"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"delivery": request.param}


def made(settings: dict[str, Any], **options: Any) -> Idempotency:
    remember = "transaction" if settings["delivery"] == "exactly_once" else "after-ack"
    return Idempotency(scope="orders", remember=remember, **options)


async def test_me_03_me_05_a_message_goes_through_once_in_a_batch_and_across_batches(
    autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    bench = Bench()
    state = await bench.run([message(id) for id in ("1", "1", "2", "3", "1", "2")], made(settings), **settings)

    assert (state.status, state.error) == (Status.COMPLETED, None)
    assert bench.ids() == ["1", "2", "3"]
    assert bench.marks() == [None, None, None]


async def test_me_01_me_04_a_message_that_comes_again_is_marked_if_that_is_wanted(
    autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    bench = Bench()
    await bench.run([message(id) for id in ("1", "2", "1")], made(settings, repeat="mark"), **settings)

    assert bench.ids() == ["1", "2", "1"]
    assert bench.marks() == [None, None, "true"]


@pytest.mark.parametrize("repeat", ["skip", "mark"])
async def test_me_15_the_mark_of_a_first_message_is_absent_whatever_it_came_with(
    autojump_clock: MockClock, settings: dict[str, Any], repeat: Repeat
) -> None:
    bench = Bench()
    await bench.run([message("1", **{REPEATED: "False"})], made(settings, repeat=repeat), **settings)

    assert bench.marks() == [None]


async def test_a_message_is_known_again_in_a_later_run(autojump_clock: MockClock, settings: dict[str, Any]) -> None:
    bench = Bench()
    idempotency = made(settings)
    await bench.run([message("1")], idempotency, **settings)
    await bench.store.forget_positions("orders")
    await bench.run([message("1"), message("2")], idempotency, **settings)

    assert bench.ids() == ["1", "2"]


async def test_scopes_and_pipelines_have_messages_of_their_own(autojump_clock: MockClock) -> None:
    bench = Bench()
    settings = {"delivery": "exactly_once"}
    await bench.run([message("1")], made(settings), **settings)
    await bench.run([message("1"), message("1")], Idempotency(scope="other"), **settings)
    await bench.run([message("1")], made(settings), id="returns", **settings)

    assert bench.ids() == ["1", "1", "1"]


async def test_me_02_what_was_not_committed_is_not_tracked_and_goes_through_when_it_comes_again(
    autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    bench = Bench()
    bench.failures = [OSError("the lake is closed")]
    state = await bench.run([message("1"), message("2")], made(settings), **settings)

    assert state.status is Status.COMPLETED
    assert bench.ids() == ["1", "2"]
    assert bench.failures == []


async def test_me_14_a_tracker_that_cannot_be_asked_drops_nothing(autojump_clock: MockClock) -> None:
    class Broken(RecentKeys):
        failures = 2

        async def known(self, scope: str, keys: Any) -> set[bytes]:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("no route to the tracker")
            return await super().known(scope, keys)

    log = EventLog()
    pipeline = Pipeline(
        "orders",
        sources=[Source("queue", ScriptedSource(records=[message("1"), message("2")], log=log), batch_size=1)],
        processors=[Idempotency(remember="after-ack", seen=Broken())],
        destinations=[Destination("lake", ScriptedDestination(name="lake", log=log))],
        dead_letters=DeadLetters("stop"),
    )
    outcomes = [(await Supervisor(pipeline, MemoryStore(), recovery=NOW).run()).status for _ in range(3)]

    assert outcomes[-1] is Status.COMPLETED
    assert len(log.stored["lake"]) == 2


async def test_me_11_a_message_that_is_refused_for_good_is_a_dead_letter_once_and_its_repeat_is_skipped(
    autojump_clock: MockClock,
) -> None:
    letters: dict[bytes, Record] = {}

    @processor
    def refuse(record: Record) -> Record:
        if record.payload["id"] == "bad":
            raise ValueError("bad")
        return record

    bench = Bench()
    settings = {"delivery": "exactly_once"}
    state = await bench.run(
        [message(id) for id in ("bad", "1", "bad")],
        made(settings),
        processors=[refuse],
        dead_letters=DeadLetters(Kept(kept=letters), window_size=0),
        **settings,
    )

    assert state.status is Status.COMPLETED
    assert bench.ids() == ["1"]
    assert len(letters) == 1


async def test_after_ack_a_message_that_was_refused_may_come_again(autojump_clock: MockClock) -> None:
    refusals = [ValueError("not today")]

    @processor
    def refuse_once(record: Record) -> Record:
        if refusals:
            raise refusals.pop()
        return record

    bench = Bench()
    await bench.run(
        # Settled one batch after the other, so that the fate of the first is known when it comes again.
        [message(id) for id in ("1", "2", "3", "4", "1")],
        Idempotency(remember="after-ack"),
        processors=[refuse_once],
        dead_letters=DeadLetters("drop", window_size=0),
        window=2,
    )

    assert bench.ids() == ["2", "3", "4", "1"]


@pytest.mark.parametrize(
    ("key", "records", "expected"),
    [
        ("payload.id", [message("1"), message("1"), message("2")], ["1", "2"]),
        ("key", [Record.of({"id": "1"}, key=b"k"), Record.of({"id": "2"}, key=b"k")], ["1"]),
        (lambda record: record.payload["id"][:1].encode(), [message("10"), message("11"), message("2")], ["10", "2"]),
        ("delivery", [message("1"), message("1")], ["1", "1"]),
    ],
    ids=["payload", "key", "function", "delivery"],
)
async def test_what_names_a_message_can_be_chosen(
    autojump_clock: MockClock, key: Any, records: list[Record], expected: list[str]
) -> None:
    bench = Bench()
    settings = {"delivery": "exactly_once"}
    await bench.run(records, made(settings, key=key), **settings)

    assert bench.ids() == expected


async def test_a_message_without_a_name_is_refused_and_the_others_go_through(autojump_clock: MockClock) -> None:
    bench = Bench()
    letters: dict[bytes, Record] = {}
    settings = {"delivery": "exactly_once"}
    await bench.run(
        [message("1"), message(None), message("2")],
        made(settings),
        dead_letters=DeadLetters(Kept(kept=letters), window_size=0),
        **settings,
    )

    assert bench.ids() == ["1", "2"]
    assert len(letters) == 1


async def test_within_the_transaction_it_needs_a_pipeline_that_has_transactions() -> None:
    with pytest.raises(PipelineInvalid, match='use delivery="exactly_once"'):
        await Bench().run([message("1")], Idempotency())


def test_a_key_that_names_nothing_is_a_problem_where_it_is_written() -> None:
    [problem] = Idempotency(key="headers.id").problems

    assert "write key, delivery, metadata.NAME or payload.NAME" in problem.message
    assert problem.path == "key"


async def test_keys_are_forgotten_when_they_are_older_than_the_retention(autojump_clock: MockClock) -> None:
    bench = Bench()
    idempotency = Idempotency(retention_seconds=600)
    settings = {"delivery": "exactly_once"}
    for seconds, id in ((0, "1"), (500, "1"), (500, "2"), (1, "1")):
        await trio.sleep(seconds)
        await bench.store.forget_positions("orders")
        bench.kept = dict(enumerate(bench.kept.values()))  # type: ignore[arg-type]
        await bench.run([message(id)], idempotency, **settings)

    assert bench.ids() == ["1", "2", "1"]


async def test_only_the_last_keys_are_kept_in_memory() -> None:
    recent = RecentKeys(count_max=2)
    await recent.remember("orders", [b"1", b"2"])
    await recent.remember("orders", [b"3"])

    assert await recent.known("orders", [b"1", b"2", b"3"]) == {b"2", b"3"}
    assert await recent.known("returns", [b"3"]) == set()


async def test_after_ack_keys_may_be_kept_in_a_store(autojump_clock: MockClock) -> None:
    bench = Bench()
    await bench.run([message("1"), message("1")], Idempotency(remember="after-ack", seen=bench.store.seen))

    assert bench.ids() == ["1"]
    assert await bench.store.seen.known("messages", [b'"1"']) == {b'"1"'}


async def test_a_pipeline_that_starts_afresh_lets_everything_through_again(autojump_clock: MockClock) -> None:
    bench = Bench()
    settings = {"delivery": "exactly_once"}
    await bench.run([message("1"), message("1")], made(settings), **settings)
    await bench.store.forget_positions("orders")
    await bench.store.reset_claim("orders")
    bench.kept.clear()
    await bench.run([message("1"), message("1")], made(settings), **settings)

    assert bench.ids() == ["1"]
