"""Hosted: a worker process whose program runs in this process, and the results that a pool with such workers gives.

A process of its own takes a second to start. What crosses to it crosses here too, as bytes.
"""

import random
import sys
from typing import Any

import msgspec

from conduit_py.batch import Batch
from conduit_py.errors import RunError
from conduit_py.pipeline import Processor
from conduit_py.stream.meter import Meter
from conduit_py.stream.processor_calls import finish
from conduit_py.stream.worker import WorkerPool
from conduit_py.stream.worker_process import (
    TO_POOL,
    TO_WORKER,
    CloseProcessor,
    WorkerAnswer,
    WorkerProcess,
    _WorkerHost,
)


class Hosted(WorkerProcess):
    """A worker whose program runs here. Everything that crosses to a process crosses as bytes all the same."""

    def start(self) -> None:
        self._process: Any = self
        self.host = _WorkerHost()

    async def _ask(self, message: Any) -> WorkerAnswer:
        path, arguments = list(sys.path), list(sys.argv)
        crossed = TO_WORKER.decode(msgspec.msgpack.encode(message))
        answer = TO_POOL.decode(msgspec.msgpack.encode(await self.host.answer(crossed)))
        sys.path[:], sys.argv[:] = path, arguments
        if isinstance(message, CloseProcessor):
            self._process = None
        self._drift.count += answer.drifted
        if answer.error is not None:
            raise answer.error.to_error()
        return answer


async def results_of(declared: Processor, *batches: Batch) -> list[Any]:
    """What the pool of this processor makes of the batches; workers in processes are hosted here."""
    pool = WorkerPool("node", declared, Meter("node", "processor"), random.Random(1))
    errors: list[RunError] = []
    for each in pool._processes:
        each.__class__ = Hosted
    try:
        await pool.open()
        return [result for batch in batches for result in await finish(pool.results(batch))]
    finally:
        for worker in pool.opened:
            await worker.close(errors)
        if errors:
            raise errors[0]
