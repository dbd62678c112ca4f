"""Results that are the values themselves take a quick way, and one that is not among them changes nothing but that."""

from typing import Any

from builders import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_py import Record, processor
from conduit_py.stream.processor_calls import SameResults
from conduit_py.stream.worker import ProcessorWorker, each

ACTS = ("same", "none", "new", "split", "raise", "stop")


def act(value: dict[str, Any]) -> Any:
    match value["act"]:
        case "none":
            return None
        case "new":
            return dict(value)
        case "split":
            return [value, value]
        case "raise":
            raise ValueError("unlucky")
        case "stop":
            raise StopIteration
    return value


def expected(value: dict[str, Any]) -> Any:
    try:
        return act(value)
    except StopIteration:
        return RuntimeError("the processor raised StopIteration")
    except ValueError as error:
        return error


def shown(results: list[Any]) -> list[Any]:
    return [(type(each), str(each)) if isinstance(each, Exception) else each for each in results]


@given(acts=st.lists(st.sampled_from(ACTS + ("same",) * 10), max_size=60), first=st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_every_result_is_that_of_its_value(acts: list[str], first: int) -> None:
    values = [{"number": number, "act": each} for number, each in enumerate(acts)]
    results, rest, first = SameResults(values), iter(values), min(first, len(values))

    # In two parts, as a worker does that looks at the clock in between.
    each(act, rest, first, results)
    each(act, rest, len(values) - first, results)

    assert shown(results.listed()) == shown([expected(value) for value in values])
    if results.gone is not None:
        assert set(acts) <= {"same", "none"}
        assert results.gone == [number for number, each in enumerate(acts) if each == "none"]
    else:
        assert not set(acts) <= {"same", "none"}


async def test_equal_is_not_the_same() -> None:
    @processor
    def again(record: Record) -> Record:
        return record.copy()

    @processor
    def same(record: Record) -> Record:
        return record

    gone = []
    for each_processor in (again, same):
        worker = ProcessorWorker("step", each_processor)
        results = worker.run(batch_of({"n": 1}, {"n": 2}))
        await worker.close([])
        assert isinstance(results, SameResults)
        gone.append(results.gone)

    assert gone == [None, []]
