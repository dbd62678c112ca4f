"""Graphs of steps as users write them: what comes out of which queue (CU-02 to CU-13, CU-22, CU-29)."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from conduit_py.errors import PipelineBusy, PipelineInvalid, PipelineUnknown
from conduit_py.steps.graph import open_steps
from conduit_py.steps.queue import QueueMetadata, Queues, Tailer
from conduit_py.steps.step import Message, Process, Step


async def plus_one(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
    return {"out": {"x": messages["in"]["x"] + 1}}


async def test_cu_02_the_system_of_the_graph_reaches_its_handlers(bench: Any) -> None:
    seen: list[object] = []

    async def look(process: Process, messages: Mapping[str, Message]) -> None:
        seen.append((process.system["component"], process.id, process.options, messages))

    steps = [Step(id="s1"), Step(id="p", handler=look, inputs={"in": "s1"}, options={"deep": 1})]
    async with bench.run(steps, system={"component": "a client"}) as graph:
        await graph.send({"x": 1})
        await bench.wait_for_log("g.p", 3)

    assert seen == [("a client", "p", {"deep": 1}, {"in": {"x": 1}})]


async def test_cu_03_a_sink_sees_every_message_with_its_index() -> None:
    queues = Queues(metadata={"s1": QueueMetadata(index=True)})
    seen: list[Message] = []
    done = trio.Event()

    def sink(process: Process, messages: Mapping[str, Message]) -> None:
        seen.append(messages["in"])
        if len(seen) == 3:
            trio.from_thread.run_sync(done.set)

    steps = [Step(id="s1"), Step(id="sink", handler=sink, inputs={"in": "s1"})]
    with trio.fail_after(300):
        async with open_steps("g", steps, queues, errors="errors") as graph:
            await graph.start()
            indices = [await graph.send({"x": number}) for number in (1, 2, 3)]
            await done.wait()
            errors = await graph.queue("errors").messages()

    assert seen == [
        {"x": number, "meta": {"queues": {"s1": {"index": index}}}}
        for number, index in zip((1, 2, 3), indices, strict=True)
    ]
    assert indices == sorted(indices)
    assert errors == []


async def test_cu_04_metadata_accumulates_along_a_pipe_and_the_transaction_is_carried_on() -> None:
    queues = Queues(metadata={"s1": QueueMetadata(index=True, transaction=True), "q1": QueueMetadata(index=True)})
    steps = [Step(id="s1"), Step(id="inc", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "q1"})]
    with trio.fail_after(300):
        async with open_steps("g", steps, queues) as graph:
            await graph.start()
            indices = [await graph.send({"x": number}) for number in (1, 2, 3)]
            tailer = Tailer(graph.queue("q1"))
            reads = []
            for _ in indices:
                await tailer.wait()
                reads.append(await tailer.read())

    assert [read and read.message for read in reads] == [
        {
            "x": number + 1,
            "meta": {"queues": {"s1": {"index": index}, "q1": {"index": read and read.index}}, "transaction": index},
        }
        for number, index, read in zip((1, 2, 3), indices, reads, strict=True)
    ]


async def test_metadata_is_stripped_where_it_is_not_wanted_and_times_are_kept_where_they_are() -> None:
    queues = Queues(metadata={"s1": QueueMetadata(time=True), "q1": QueueMetadata(strip=True)})
    steps = [Step(id="s1"), Step(id="inc", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "q1"})]
    with trio.fail_after(300):
        async with open_steps("g", steps, queues) as graph:
            await graph.start()
            await graph.send({"x": 1})
            tailer = Tailer(graph.queue("q1"))
            arrived = (await tailer.wait()).message
            (sent,) = await graph.queue("s1").messages()

    assert arrived == {"x": 2}
    assert sent["meta"]["queues"]["s1"]["time"] > 1_600_000_000


async def test_cu_05_alts_takes_the_next_message_of_whichever_input_has_one(bench: Any) -> None:
    async def next_one(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        ((name, message),) = messages.items()
        return {"out": {"x": message["x"] + 1, "from": name}}

    steps = [
        Step(id="s1"),
        Step(id="s2"),
        Step(id="p", handler=next_one, alts={"a": "s1", "b": "s2"}, outputs={"out": "q1"}),
    ]
    async with bench.run(steps) as graph:
        for count, (source, number) in enumerate([("s1", 1), ("s2", 2), ("s2", 3), ("s1", 4)], 1):
            await graph.send({"x": number}, source)
            arrived = await bench.wait_for_messages("q1", count)

    assert arrived == [{"x": 2, "from": "a"}, {"x": 3, "from": "b"}, {"x": 4, "from": "b"}, {"x": 5, "from": "a"}]


async def test_cu_06_an_imperative_step_writes_through_its_appender(bench: Any) -> None:
    async def write(process: Process, messages: Mapping[str, Message]) -> None:
        await process.appenders["q"].append({"x": messages["in"]["x"] + 1})

    steps = [Step(id="s1"), Step(id="p", handler=write, inputs={"in": "s1"}, appenders={"q": "q1"})]
    async with bench.run(steps) as graph:
        for number in (1, 2, 3):
            await graph.send({"x": number})
        arrived = await bench.wait_for_messages("q1", 3)

    assert [message["x"] for message in arrived] == [2, 3, 4]


async def test_an_imperative_step_reads_through_its_tailer(bench: Any) -> None:
    async def join(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        other = await process.tailers["t"].read()
        return {"out": {"x": (messages["in"]["x"], other and other.message["x"])}}

    steps = [
        Step(id="s1"),
        Step(id="side"),
        Step(id="p", handler=join, inputs={"in": "s1"}, tailers={"t": "side"}, outputs={"out": "q1"}),
    ]
    async with bench.run(steps) as graph:
        await graph.send({"x": "b"}, "side")
        await graph.send({"x": 1}, "s1")
        await graph.send({"x": 2}, "s1")
        arrived = await bench.wait_for_messages("q1", 2)

    assert [message["x"] for message in arrived] == [[1, "b"], [2, None]]


async def add_up(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
    total = sum(message["x"] for message in messages.values())
    return {name: {"x": total} for name in process.config["outputs"]}


async def test_cu_07_a_join_takes_one_message_from_every_input() -> None:
    queues = Queues(metadata={"s1": QueueMetadata(index=True), "s2": QueueMetadata(index=True)})
    steps = [
        Step(id="s1"),
        Step(id="s2"),
        Step(id="i1", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "j1"}),
        Step(id="i2", handler=plus_one, inputs={"in": "s2"}, outputs={"out": "j2"}),
        Step(id="join", handler=add_up, inputs={"a": "j1", "b": "j2"}, outputs={"out": "q1"}),
    ]
    with trio.fail_after(300):
        async with open_steps("g", steps, queues) as graph:
            await graph.start()
            for source, number in [("s1", 1), ("s1", 3), ("s2", 2), ("s2", 4)]:
                await graph.send({"x": number}, source)
            tailer = Tailer(graph.queue("q1"))
            arrived = []
            for _ in range(2):
                await tailer.wait()
                read = await tailer.read()
                arrived.append(read and read.message)

    assert [message and message["x"] for message in arrived] == [5, 9]
    assert [set(message["meta"]["queues"]) for message in arrived if message] == [{"s1", "s2"}, {"s1", "s2"}]


async def test_cu_08_a_fork_sends_to_all_its_outputs(bench: Any) -> None:
    steps = [
        Step(id="s1"),
        Step(id="s2"),
        Step(id="p", handler=add_up, inputs={"a": "s1", "b": "s2"}, outputs={"l": "q1", "r": "q2"}),
    ]
    async with bench.run(steps) as graph:
        for source, number in [("s1", 1), ("s1", 3), ("s2", 2), ("s2", 4)]:
            await graph.send({"x": number}, source)
        left, right = await bench.wait_for_messages("q1", 2), await bench.wait_for_messages("q2", 2)

    assert [message["x"] for message in left] == [3, 7]
    assert [message["x"] for message in right] == [3, 7]


async def test_cu_09_leaving_an_output_out_routes(bench: Any) -> None:
    async def by_parity(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message | None]:
        total = sum(message["x"] for message in messages.values())
        return {"even": {"x": total} if total % 2 == 0 else None, "odd": {"x": total} if total % 2 else None}

    steps = [
        Step(id="s1"),
        Step(id="s2"),
        Step(id="p", handler=by_parity, inputs={"a": "s1", "b": "s2"}, outputs={"even": "q1", "odd": "q2"}),
    ]
    async with bench.run(steps) as graph:
        for source, number in [("s1", 1), ("s1", 2), ("s2", 1), ("s2", 3)]:
            await graph.send({"x": number}, source)
        await bench.wait_for_messages("q2", 1)

    assert (await bench.all("q1"), await bench.all("q2")) == ([2], [5])


async def test_cu_10_a_failed_step_leaves_its_messages_in_the_error_queue(bench: Any) -> None:
    async def only_even(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        if messages["in"]["x"] % 2:
            raise ValueError(f"{messages['in']['x']} is odd")
        return {"out": messages["in"]}

    steps = [Step(id="s1"), Step(id="p", handler=only_even, inputs={"in": "s1"}, outputs={"out": "q1"})]
    async with bench.run(steps, errors="errors") as graph:
        for number in (1, 2, 3, 4):
            await graph.send({"x": number})
        arrived = await bench.wait_for_messages("q1", 2)
        errors = await bench.wait_for_messages("errors", 2)

    assert [message["x"] for message in arrived] == [2, 4]
    assert [error["messages"] for error in errors] == [{"in": {"x": 1}}, {"in": {"x": 3}}]
    assert [(error["cause"]["class"], error["cause"]["message"]) for error in errors] == [
        ("ValueError", "1 is odd"),
        ("ValueError", "3 is odd"),
    ]
    assert errors[0]["step"] == {
        "id": "p",
        "inputs": {"in": "s1"},
        "outputs": {"out": "q1"},
        "errors": "errors",
        "strategy": "exactly_once",
    }
    assert 'raise ValueError(f"' in errors[0]["cause"]["trace"]


async def test_without_an_error_queue_a_step_may_drop_what_fails(bench: Any) -> None:
    async def picky(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        if messages["in"]["x"] == 1:
            raise ValueError("not this one")
        return {"out": messages["in"]}

    steps = [Step(id="s1"), Step(id="p", handler=picky, inputs={"in": "s1"}, outputs={"out": "q1"}, on_error="drop")]
    async with bench.run(steps) as graph:
        await graph.send({"x": 1})
        await graph.send({"x": 2})
        arrived = await bench.wait_for_messages("q1", 1)

    assert arrived == [{"x": 2}]
    assert graph.failures == {}


async def test_cu_13_filters_by_type_in_a_join_and_by_topic_in_a_sink(bench: Any) -> None:
    kept: list[Message] = []

    async def first(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        return {"out": next(iter(messages.values()))}

    async def store(process: Process, messages: Mapping[str, Message]) -> None:
        kept.append(messages["doc"])

    steps = [
        Step(id="s1"),
        Step(id="s2"),
        Step(id="p", handler=first, inputs={"a": "s1", "b": "s2"}, outputs={"out": "q1"}, types=["doc"]),
        Step(id="sink", handler=store, inputs={"doc": "q1"}, topics=["store"]),
    ]
    doc = {"x": 1, "type": "doc", "topics": {"store": True}}
    other = {"x": 2, "type": "doc", "topics": {"elsewhere": True}}
    async with bench.run(steps) as graph:
        for source, each in [("s1", {"type": "query"}), ("s2", doc), ("s1", {}), ("s2", {}), ("s1", other), ("s2", {})]:
            await graph.send(each, source)
        await bench.wait_for_log("g.sink", 5)

    assert kept == [doc]
    assert (await bench.attempts("g.p"))[:6] == ["S", "O", "S", "N", "S", "O"]


async def test_cu_22_one_message_wakes_every_tailer_that_waits() -> None:
    queues = Queues()
    queue = await queues.open("q")
    seen: list[Message] = []

    async def wait() -> None:
        seen.append((await Tailer(queue).wait()).message)

    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await queue.append({"x": 1})

    assert seen == [{"x": 1}, {"x": 1}]


async def test_cu_29_two_graphs_on_one_queue_each_see_every_message(bench: Any) -> None:
    steps = [Step(id="s1"), Step(id="inc", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "q1"})]
    others = [Step(id="s1"), Step(id="inc", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "q2"})]
    async with bench.run(steps, id="one") as one, bench.run(others, id="two"):
        for number in (1, 2, 3):
            await one.send({"x": number})
        await bench.wait_for_messages("q1", 3)
        await bench.wait_for_messages("q2", 3)

    assert (await bench.all("q1"), await bench.all("q2")) == ([2, 3, 4], [2, 3, 4])


async def test_a_step_that_fails_ends_alone_and_says_so(bench: Any) -> None:
    async def broken(process: Process, messages: Mapping[str, Message]) -> None:
        raise RuntimeError("no")

    steps = [
        Step(id="s1"),
        Step(id="broken", handler=broken, inputs={"in": "s1"}),
        Step(id="inc", handler=plus_one, inputs={"in": "s1"}, outputs={"out": "q1"}),
    ]
    async with bench.run(steps) as graph:
        await graph.send({"x": 1})
        await graph.send({"x": 2})
        arrived = await bench.wait_for_messages("q1", 2)
        await bench.wait_for_log("g.broken", 1)
        await graph.failure()

    assert [message["x"] for message in arrived] == [2, 3]
    assert {step: str(error) for step, error in graph.failures.items()} == {"broken": "no"}


async def test_a_message_for_an_output_that_does_not_exist_is_an_error_of_the_handler(bench: Any) -> None:
    async def misspelt(process: Process, messages: Mapping[str, Message]) -> Mapping[str, Message]:
        return {"outt": {"x": 1}}

    steps = [Step(id="s1"), Step(id="p", handler=misspelt, inputs={"in": "s1"}, outputs={"out": "q1"})]
    async with bench.run(steps, errors="errors") as graph:
        await graph.send({"x": 1})
        (error,) = await bench.wait_for_messages("errors", 1)

    assert error["cause"]["message"] == "g.p: returned a message for outt, which is no output of it"


async def test_what_is_asked_of_the_wrong_graph_is_refused_with_what_there_is(bench: Any) -> None:
    steps = [Step(id="s1"), Step(id="s2")]
    async with bench.run(steps) as graph:
        with pytest.raises(PipelineUnknown, match="graph 'g' has no source None") as caught:
            await graph.send({"x": 1})
        with pytest.raises(PipelineUnknown, match="graph 'g' has no queue 'q9'"):
            graph.queue("q9")
        with pytest.raises(PipelineBusy, match="is running already"):
            await graph.start()

    assert caught.value.suggestion == "sources are s1, s2"
    with pytest.raises(PipelineInvalid, match="another step has the id 's1'"):
        async with open_steps("g", [Step(id="s1"), Step(id="s1")]):
            pass
