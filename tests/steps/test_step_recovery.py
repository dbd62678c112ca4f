"""What a step does after it was cut short (CU-14 to CU-21, CU-25, CU-26, CU-28) and what its log then says."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio

from conduit_py.errors import ConduitError, EnvironmentUnfit, Fenced
from conduit_py.journal.errors import JournalFull
from conduit_py.journal.log import Append, Commit, MemoryLog
from conduit_py.steps.attempt_log import (
    Choice,
    Decided,
    Entry,
    ForkMessage,
    Nothing,
    PositionSnapshot,
    Sent,
    StartPoint,
    find_start,
)
from conduit_py.steps.queue import Queues
from conduit_py.steps.step import Message, Process, Step


async def pass_on(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
    (only,) = messages.values()
    return {"out": only}


async def nothing(process: Process, messages: Mapping[str, Message]) -> None:
    return None


async def hang(process: Process, messages: Mapping[str, Message]) -> None:
    await trio.sleep_forever()


PIPE = [
    Step(id="s1"),
    Step(id="p", handler=pass_on, inputs={"in": "s1"}, outputs={"out": "q1"}),
    Step(id="sink", handler=nothing, inputs={"in": "q1"}),
]
HANGING = [PIPE[0], Step(id="p", handler=hang, inputs={"in": "s1"}, outputs={"out": "q1"}), PIPE[2]]


async def test_cu_14_an_interrupted_step_is_taken_again_with_the_snapshot_it_had(bench: Any) -> None:
    async with bench.run(HANGING) as graph:
        await graph.send({"x": 1})
        await graph.send({"x": 2})
        await bench.wait_for_log("g.p", 1)
        await graph.stop(force=True)
    assert (await bench.all("q1"), await bench.attempts("g.p")) == ([], ["S"])

    async with bench.run(PIPE):
        await bench.wait_for_log("g.p", 5)
        await bench.wait_for_log("g.sink", 5)

    assert await bench.all("q1") == [1, 2]
    assert await bench.attempts("g.p") == ["S", "O", "S", "O", "S"]
    assert await bench.attempts("g.sink") == ["S", "N", "S", "N", "S"]


async def test_cu_15_an_interrupted_alts_reads_the_queue_it_had_chosen(bench: Any) -> None:
    sources = [Step(id="s1"), Step(id="s2")]
    first = [*sources, Step(id="p", handler=hang, alts={"a": "s1", "b": "s2"}, outputs={"out": "q1"})]
    then = [*sources, Step(id="p", handler=pass_on, alts={"b": "s2", "a": "s1"}, outputs={"out": "q1"})]
    async with bench.run(first) as graph:
        await graph.send({"x": 1}, "s2")
        await bench.wait_for_log("g.p", 2)
        await graph.stop(force=True)
    assert await bench.attempts("g.p") == ["S", "A(s2)"]

    async with bench.run(then) as graph:
        await graph.send({"x": 2}, "s1")
        await bench.wait_for_log("g.p", 7)

    assert await bench.all("q1") == [1, 2]
    assert await bench.attempts("g.p") == ["S", "A(s2)", "O", "S", "A(s1)", "O", "S"]


async def test_cu_16_an_interrupted_fork_sends_to_all_its_outputs_later(bench: Any) -> None:
    async def fork(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        return {"l": messages["a"], "r": messages["b"]}

    def steps(handler: Any) -> list[Step]:
        forking = Step(id="p", handler=handler, inputs={"a": "s1", "b": "s2"}, outputs={"l": "q1", "r": "q2"})
        return [Step(id="s1"), Step(id="s2"), forking]

    async with bench.run(steps(hang)) as graph:
        await graph.send({"x": 1}, "s1")
        await graph.send({"x": 2}, "s2")
        await bench.wait_for_log("g.p", 1)
        await graph.stop(force=True)
    assert (await bench.all("q1"), await bench.all("q2")) == ([], [])

    async with bench.run(steps(fork)):
        await bench.wait_for_log("g.p", 4)

    assert (await bench.all("q1"), await bench.all("q2")) == ([1], [2])
    assert await bench.attempts("g.p") == ["S", "D", "N", "S"]


async def test_cu_17_a_handled_error_takes_the_place_of_the_output(bench: Any) -> None:
    async def refuse_one(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        if messages["in"]["x"] == 1:
            raise ValueError("not this one")
        return {"out": messages["in"]}

    steps = [PIPE[0], Step(id="p", handler=refuse_one, inputs={"in": "s1"}, outputs={"out": "q1"})]
    async with bench.run(steps, errors="errors") as graph:
        await graph.send({"x": 1})
        await graph.send({"x": 2})
        await bench.wait_for_log("g.p", 5)

    assert await bench.all("q1") == [2]
    assert len(await (await bench.queues.open("errors")).messages()) == 1
    assert await bench.attempts("g.p") == ["S", "E", "S", "O", "S"]


class FullLog(MemoryLog):
    """Has no room for the next `full` messages."""

    full = 0

    def append_all(self, appends: Sequence[Append]) -> list[Commit | ConduitError]:
        if self.full and appends[0].bodies:
            self.full -= 1
            return [JournalFull(f"{self.name} is full")]
        return super().append_all(appends)


async def full_queue(queues: Queues, id: str, times: int) -> None:
    """Have the next messages for this queue find no room."""
    queue = await queues.open(id)
    log = FullLog(id)
    log.full = times
    queue.journal.log = log


async def test_cu_18_a_write_that_fails_after_its_attempt_is_a_handled_error(bench: Any) -> None:
    steps = PIPE[:2]
    await bench.queues.open("q1")
    await full_queue(bench.queues, "q1", 1)
    async with bench.run(steps, errors="errors") as graph:
        await graph.send({"x": 1})
        (first,) = await bench.wait_for_messages("errors", 1)
        await full_queue(bench.queues, "q1", 1)
        await graph.send({"x": 2})
        await bench.wait_for_messages("errors", 2)
        await bench.wait_for_log("g.p", 7)

    assert await bench.all("q1") == []
    assert first["messages"] == {"q1": {"x": 1}}
    assert first["cause"]["class"] == "JournalFull"
    assert await bench.attempts("g.p") == ["S", "O", "E", "S", "O", "E", "S"]


async def test_cu_19_without_an_error_queue_the_step_ends_and_is_repeated_at_the_next_start(bench: Any) -> None:
    steps = PIPE[:2]
    await bench.queues.open("q1")
    await full_queue(bench.queues, "q1", 1)
    async with bench.run(steps) as graph:
        await graph.send({"x": 2})
        await graph.send({"x": 3})
        await graph.failure()
    assert (await bench.all("q1"), await bench.attempts("g.p")) == ([], ["S", "O"])

    async with bench.run(steps) as graph:
        await bench.wait_for_log("g.p", 6)

    assert await bench.all("q1") == [2, 3]
    assert await bench.attempts("g.p") == ["S", "O", "O", "S", "O", "S"]
    assert graph.failures == {}


async def test_cu_20_what_was_delivered_before_the_interruption_is_not_delivered_again(bench: Any) -> None:
    async with bench.run(PIPE[:2]) as graph:
        await graph.send({"x": 2})
        await bench.wait_for_log("g.p", 3)
        await graph.stop()
    await cut_log(bench.queues, "g.p", 1)
    assert await bench.attempts("g.p") == ["S", "O"]

    async with bench.run(PIPE[:2]):
        await bench.wait_for_log("g.p", 3)

    assert await bench.all("q1") == [2]
    assert await bench.attempts("g.p") == ["S", "O", "S"]


async def cut_log(queues: Queues, uid: str, entries: int) -> None:
    """Take the newest entries off a step's log: they were never written."""
    log = (await queues.journal(f"attempts/{uid}")).log
    assert isinstance(log, MemoryLog)
    del log.frames[len(log.frames) - entries :]


async def test_cu_21_at_most_once_drops_what_it_was_about(bench: Any) -> None:
    hanging = Step(id="p", handler=hang, inputs={"in": "s1"}, outputs={"out": "q1"}, strategy="at_most_once")
    passing = Step(id="p", handler=pass_on, inputs={"in": "s1"}, outputs={"out": "q1"}, strategy="at_most_once")
    async with bench.run([Step(id="s1"), hanging]) as graph:
        await graph.send({"x": 1})
        await bench.wait_for_log("g.p", 1)
        await graph.send({"x": 2})
        await graph.stop(force=True)

    async with bench.run([Step(id="s1"), passing]):
        await bench.wait_for_messages("q1", 1)

    assert await bench.all("q1") == [2]


async def test_at_most_once_still_sends_handled_errors_to_the_error_queue(bench: Any) -> None:
    async def refuse(process: Process, messages: Mapping[str, Message]) -> None:
        raise ValueError("no")

    step = Step(id="p", handler=refuse, inputs={"in": "s1"}, errors="errors", strategy="at_most_once")
    async with bench.run([Step(id="s1"), step]) as graph:
        await graph.send({"x": 1})
        (error,) = await bench.wait_for_messages("errors", 1)

    assert error["messages"] == {"in": {"x": 1}}
    assert error["step"]["strategy"] == "at_most_once"


def alts(handler: Any) -> list[Step]:
    return [Step(id="s1"), Step(id="s2"), Step(id="p", handler=handler, alts={"a": "s1", "b": "s2"})]


async def keys_over_two_runs(bench: Any, *, cut: int) -> list[tuple[str, str]]:
    """(key, input) of every call: a first run reads s2, loses `cut` log entries, and then s1 has a message too."""
    calls: list[tuple[str, str]] = []

    async def note(process: Process, messages: Mapping[str, Message]) -> None:
        calls.append((process.delivery_key, next(iter(messages))))

    async def note_and_hang(process: Process, messages: Mapping[str, Message]) -> None:
        await note(process, messages)
        await trio.sleep_forever()

    async with bench.run(alts(note_and_hang)) as graph:
        await graph.send({"x": 1}, "s2")
        await bench.wait_for_log("g.p", 2)
        await trio.testing.wait_all_tasks_blocked()
        await graph.stop(force=True)
    await cut_log(bench.queues, "g.p", cut)
    async with bench.run(alts(note)) as graph:
        await graph.send({"x": 2}, "s1")
        await bench.wait_for_log("g.p", 7)
    return calls


async def test_cu_25_a_recorded_choice_is_read_again_after_a_crash(bench: Any) -> None:
    calls = await keys_over_two_runs(bench, cut=0)

    assert [name for _, name in calls] == ["b", "b", "a"]
    assert calls[0] == calls[1]
    assert calls[2][0] != calls[0][0]


async def test_cu_26_a_choice_is_recorded_on_the_second_attempt_if_the_first_did_not_get_to_it(bench: Any) -> None:
    calls = await keys_over_two_runs(bench, cut=1)

    # The choice of the first attempt is not known any more, so either input may be next; but a key never
    # stands for two different messages, and the second attempt has written its choice down.
    assert len({name for _, name in calls}) == len(set(calls)) == 2
    assert [entry[0] for entry in (await bench.attempts("g.p"))[:3]] == ["S", "A", "N"]


async def test_cu_28_a_queue_that_is_new_to_a_step_is_read_from_its_beginning_and_said_so(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.run(PIPE[:2]) as graph:
        await graph.send({"x": 1})
        await bench.wait_for_log("g.p", 3)
    joined = [
        Step(id="s1"),
        Step(id="s0"),
        Step(id="p", handler=pass_on, alts={"new": "s0", "in": "s1"}, outputs={"out": "q1"}),
    ]
    await (await bench.queues.open("s0")).append({"x": 7})

    async with bench.run(joined) as graph:
        await bench.wait_for_messages("q1", 2)
        await graph.send({"x": 2}, "s1")
        await bench.wait_for_messages("q1", 3)

    assert await bench.all("q1") == [1, 7, 2]
    assert "g.p reads s0 for the first time, from its beginning" in caplog.text


async def test_a_graph_that_runs_somewhere_else_too_is_fenced_there(bench: Any) -> None:
    async with bench.run(PIPE[:2]) as old:
        await old.send({"x": 1})
        await bench.wait_for_log("g.p", 3)
        async with bench.run(PIPE[:2]) as new:
            await bench.wait_for_log("g.p", 3)
            await old.send({"x": 2})
            await bench.wait_for_messages("q1", 2)
            await old.failure()

    assert await bench.all("q1") == [1, 2]
    assert isinstance(old.failures["p"], Fenced)
    assert new.failures == {}


async def test_a_second_start_waits_for_the_stop_and_goes_on(bench: Any) -> None:
    async with bench.run(PIPE[:2]) as graph:
        await graph.send({"x": 1})
        await bench.wait_for_messages("q1", 1)
        await graph.stop()
        await graph.send({"x": 2})
        await graph.start()
        await bench.wait_for_messages("q1", 2)

    assert await bench.all("q1") == [1, 2]


SNAPSHOT = PositionSnapshot({"s1": 3, "s2": 5})
SENT = Sent("q1", 9, b"key", {"s1": 4, "s2": 5})
DECIDED = Decided([ForkMessage("q1", 9, {"x": 1})], b"key", {"s1": 4, "s2": 5})

OUTSETS: list[tuple[list[Entry], bool, StartPoint]] = [
    ([], False, StartPoint({})),
    ([SNAPSHOT], False, StartPoint(SNAPSHOT.indices, retrying=True)),
    ([SNAPSHOT, Choice("s2")], False, StartPoint(SNAPSHOT.indices, retrying=True, choice="s2")),
    ([SNAPSHOT, SENT], True, StartPoint(SENT.after)),
    ([SNAPSHOT, SENT], False, StartPoint(SNAPSHOT.indices, retrying=True)),
    ([SNAPSHOT, Choice("s1"), SENT], False, StartPoint(SNAPSHOT.indices, retrying=True, choice="s1")),
    ([SNAPSHOT, Choice("s1"), SENT, SENT], True, StartPoint(SENT.after)),
    ([SNAPSHOT, Nothing(b"key", {"s1": 4})], False, StartPoint({"s1": 4})),
    ([SNAPSHOT, DECIDED], False, StartPoint(DECIDED.after, unfinished=DECIDED)),
]


@pytest.mark.parametrize(("log", "delivered", "expected"), OUTSETS)
async def test_the_newest_entry_and_one_look_decide(log: list[Entry], delivered: bool, expected: StartPoint) -> None:
    async def newest_first() -> Any:
        for entry in reversed(log):
            yield entry

    async def look(sent: Sent) -> bool:
        return delivered

    assert await find_start(newest_first(), look) == expected


async def test_attempts_without_a_snapshot_are_not_taken_for_a_beginning() -> None:
    async def newest_first() -> Any:
        yield Choice("s1")

    async def look(sent: Sent) -> bool:
        return False

    with pytest.raises(EnvironmentUnfit, match="has attempts but no snapshot"):
        await find_start(newest_first(), look)
