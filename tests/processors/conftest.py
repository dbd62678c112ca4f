"""How the tests of processors put records through them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from conduit_py.sdk import Processor, Record, RecordRefused


@pytest.fixture
def run() -> Callable[[Processor[Any], Record], Any]:
    """The result of a processor for one record, on a fresh instance as the runtime uses it."""

    def process(processor: Processor[Any], record: Record) -> Any:
        fresh = processor.fresh()
        assert isinstance(fresh, Processor)
        fresh.open()
        return fresh.process(record)

    return process


@pytest.fixture
def refusal(run: Callable[..., Any]) -> Callable[[Processor[Any], Record], RecordRefused]:
    """The error with which a processor refuses a record, after checking that the record is as it was."""

    def refuse(processor: Processor[Any], record: Record) -> RecordRefused:
        before = copy.deepcopy(record)
        with pytest.raises(RecordRefused) as caught:
            run(processor, record)
        assert record == before
        return caught.value

    return refuse
