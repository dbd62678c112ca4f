"""Pipelines on Spark whose sources never end, one that executors read and one that the driver reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from conduit_connectors import file
from pyspark.sql import SparkSession

from conduit_py import pipeline as p
from conduit_py.record import Record
from conduit_py.sdk import EndOfSource, NothingYet, Options, SplittableSource
from conduit_py.sdk.processor import processor
from conduit_py.spark.engine.supervisor import SparkSupervisor
from conduit_py.spark.session.shared_session import SparkOptions
from conduit_py.status import Status
from conduit_py.store.memory import MemoryStore
from conduit_py.stream.meter import Progress

WIDTH = 8


class GrowingOptions(Options):
    """Where the numbers are."""

    path: Path


class Growing(SplittableSource[GrowingOptions]):
    """Numbers in lines of eight bytes, read in parts, with more to come; the position is the offset behind one."""

    def open(self, position: bytes | None) -> None:
        self._at, self._end = int(position or 0), -1

    def split(self, size: int) -> bytes:
        start, end = self._at, self.options.path.stat().st_size // WIDTH * WIDTH
        if start == end:
            raise NothingYet
        self._at = min(end, start + size)
        return b"%d %d" % (start, self._at)

    def open_part(self, part: bytes) -> None:
        self._at, self._end = map(int, part.split())

    def read(self, n: int) -> list[Record]:
        if self._at == self._end:
            raise EndOfSource
        with self.options.path.open("rb") as lines:
            lines.seek(self._at)
            found = lines.read(min(n * WIDTH, self._end - self._at)).split()
        start, self._at = self._at, self._at + len(found) * WIDTH
        return [
            Record.of({"n": int(line)}, position=b"%d" % (start + (index + 1) * WIDTH))
            for index, line in enumerate(found)
        ]


@processor
def tagged(record: Record) -> Record:
    after = record.payload.after
    if isinstance(after, bytes):
        return Record.of({"n": int(after), "from": "tail"})
    return Record.of({"n": record.payload["n"], "from": "split"})


class World:
    """A folder with the input of both sources and the output."""

    def __init__(self, folder: Path, spark_options: dict[str, Any]) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.written = 0
        self._spark = SparkOptions(**spark_options)
        self.add(0)

    def add(self, count: int) -> None:
        for name in ("split", "tail"):
            with (self.folder / name).open("a") as lines:
                lines.writelines(f"{n:07d}\n" for n in range(self.written, self.written + count))
        self.written += count

    def supervisor(self) -> SparkSupervisor:
        pipeline = p.Pipeline(
            "endless",
            sources=[
                p.Source("split", Growing(path=self.folder / "split")),
                p.Source("tail", file.Source(path=self.folder / "tail", tail=True)),
            ],
            processors=[tagged],
            destinations=[p.Destination("out", file.Destination(path=self.folder / "out.jsonl", format="json"))],
            delivery="exactly_once",
        )
        return SparkSupervisor(pipeline, self.store, spark=self._spark)

    def out(self, name: str) -> list[int]:
        lines = (self.folder / "out.jsonl").read_text().splitlines()
        return [int(line.split('"n":')[1].split(",")[0]) for line in lines if name in line]


async def until(supervisor: SparkSupervisor, wanted: Callable[[Progress], bool]) -> Progress:
    with trio.fail_after(300):
        while not wanted(seen := supervisor.progress()):
            assert supervisor.state.status in (Status.CREATED, Status.RUNNING), supervisor.state
            await trio.sleep(0.05)
        return seen


def idle(seen: Progress) -> bool:
    return {meter.waiting_on for meter in seen.nodes if meter.kind == "source"} == {"source"}


async def test_they_go_on_until_they_are_stopped_and_from_there_when_they_are_started_again(
    tmp_path: Path, spark: SparkSession, spark_options: dict[str, Any]
) -> None:
    world = World(tmp_path, spark_options)
    world.add(1000)
    first = world.supervisor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await until(first, lambda seen: seen.acked == 2000)
        await until(first, idle)
        world.add(1)
        await until(first, lambda seen: seen.acked == 2002)
        await until(first, idle)
        first.stop()
    world.add(1000)
    second = world.supervisor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.run)
        seen = await until(second, lambda seen: seen.acked == 2000)
        second.force()

    assert first.state.status is Status.STOPPED, first.state.error
    assert second.state.status is Status.STOPPED, second.state.error
    assert {meter.node: meter.records for meter in seen.nodes} == {
        "split": 1000, "tail": 1000, "tagged": 2000, "out": 2000, "dead-letters": 0
    }  # fmt: skip
    assert world.out("split") == list(range(2001))
    assert world.out("tail") == list(range(2001))
