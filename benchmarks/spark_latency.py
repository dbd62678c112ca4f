"""What a job of the engine costs with almost nothing to do: one record at a time, each acked before the next."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import file

from benchmarks.spark_engine import Delivery, on_spark, to_end
from benchmarks.spark_measure import Line
from conduit_py import Destination, Pipeline, Record, Source, processor, sdk
from conduit_py.record import Payload
from conduit_py.spark.session.shared_session import SparkOptions

WARM_UP = 20


class OneByOneOptions(sdk.Options):
    """How many records to give, and where to note how long each took."""

    count: int
    took: Any


class OneByOne(sdk.SourceConnector[OneByOneOptions]):
    """Gives a record, and the next one once that is acked."""

    async def open(self, position: bytes | None) -> None:
        self._next = 0
        self._given_at = 0.0
        self._free = trio.Event()
        self._free.set()

    async def read(self, n: int) -> list[Record]:
        await self._free.wait()
        if self._next == self.options.count:
            raise sdk.EndOfSource
        self._free = trio.Event()
        self._given_at = time.perf_counter()
        self._next += 1
        return [Record(position=b"%d" % self._next, payload=Payload(after={"n": self._next}))]

    async def ack(self, positions: Sequence[bytes]) -> None:
        self.options.took.append(time.perf_counter() - self._given_at)
        self._free.set()


@processor
def squared(record: Record) -> Record:
    record.payload["square"] = record.payload["n"] ** 2
    return record


def lines(spark: SparkOptions, folder: Path, count: int) -> list[Line]:
    return [line(spark, folder, count, "at_least_once"), line(spark, folder, count, "exactly_once")]


def line(spark: SparkOptions, folder: Path, count: int, delivery: Delivery) -> Line:
    took: list[float] = []
    pipeline = Pipeline(
        "trickle",
        sources=[Source("one", OneByOne(count=WARM_UP + count, took=took))],
        processors=[squared],
        destinations=[Destination("out", file.Destination(path=folder / f"{delivery}.jsonl", format="json"))],
        delivery=delivery,
    )
    trio.run(to_end, pipeline, folder / f"{delivery}.state", on_spark(spark))
    name = f"one record from read to ack, {delivery.replace('_', ' ')}"
    return Line(name, [1000 * each for each in took[WARM_UP:]], unit="ms", most=250)
