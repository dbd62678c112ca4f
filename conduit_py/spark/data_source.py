"""DataSource: the sources of conduit-py as a format of Spark's, `spark.read.format("conduit")`.

Register it with `spark.dataSource.register(DataSource)`. It is read as a batch: what the source holds now.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import trio
from pyspark.sql import datasource

from conduit_py import sdk
from conduit_py.errors import PipelineInvalid, Problem
from conduit_py.record import Data, Record, encode_json
from conduit_py.sdk import registry
from conduit_py.sdk.source import EndOfSource, NothingYet, Reading
from conduit_py.sdk.splittable import SplittableSource
from conduit_py.stream.calls import Calls

SCHEMA = (
    "position BINARY, operation STRING, metadata MAP<STRING, STRING>, key BINARY, before BINARY, after BINARY, "
    "refused STRING"
)
Row: TypeAlias = tuple[bytes, str, dict[str, str], bytes | None, bytes | None, bytes | None, str | None]

PART_SIZE = 32 * 1024 * 1024
BATCH_SIZE = 1024
AHEAD_MAX = 4
"""Batches that are read and not yet taken."""


class DataSource(datasource.DataSource):
    """A row for each record of a source, from its beginning to its end.

    The option `connector` names the source as in YAML; all others are the source's own, as text, or as JSON where
    they are lists or objects. Structured data comes as JSON. A record that the source cannot understand is a row
    too: `refused` says why, and `after` has what was read. A source that can be split is read by many tasks.
    """

    @classmethod
    def name(cls) -> str:
        return "conduit"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> "Reader":
        return Reader(dict(self.options))


class Reader(datasource.DataSourceReader):
    """Made anew from its options wherever it is needed: on the driver to split, on executors to read."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        made(options)

    def partitions(self) -> Sequence[datasource.InputPartition]:
        source = made(self._options)
        if not isinstance(source, SplittableSource) or not source.splits():
            return [datasource.InputPartition(None)]
        parts: list[bytes] = trio.run(_parts, source)
        return [datasource.InputPartition(part) for part in parts]

    def read(self, partition: datasource.InputPartition) -> Iterator[Row]:
        for reading in _readings(made(self._options), cast("bytes | None", partition.value)):
            refused = reading.refused if isinstance(reading, Reading) else {}
            records = reading.records if isinstance(reading, Reading) else reading
            for index, record in enumerate(records):
                yield _row(record, refused.get(index))


def made(options: dict[str, str]) -> sdk.Source[Any]:
    """The source that the options describe. PipelineInvalid has everything that is wrong with them."""
    settings = dict(options)
    name = settings.pop("connector", "")
    try:
        plugin = registry.find("source", name)
    except registry.UnknownPlugin as error:
        raise PipelineInvalid("conduit", [Problem("connector", error.message, error.suggestion)]) from error
    source = plugin(**{key: _value(text) for key, text in settings.items()})
    assert isinstance(source, sdk.Source)
    if source.problems:
        raise PipelineInvalid("conduit", source.problems)
    return source


def _value(text: str) -> Any:
    return msgspec.json.decode(text) if text[:1] in ("[", "{") else text


async def _parts(source: SplittableSource[Any]) -> list[bytes]:
    calls = Calls("conduit", source)
    parts: list[bytes] = []
    try:
        await calls("open", None)
        while True:
            parts.append(await calls("split", PART_SIZE))
    except (EndOfSource, NothingYet):
        return parts
    finally:
        await calls("teardown")
        calls.close()


def _readings(source: sdk.Source[Any], part: bytes | None) -> Iterator[list[Record] | Reading]:
    """What a source gives, read in a thread, for it may be async and Spark is not."""
    ahead: queue.Queue[list[Record] | Reading | BaseException | None] = queue.Queue(AHEAD_MAX)
    left = threading.Event()
    arguments = (source, part, ahead, left)
    threading.Thread(target=_run, args=arguments, name="conduit-source", daemon=True).start()
    try:
        while (reading := ahead.get()) is not None:
            if isinstance(reading, BaseException):
                raise reading
            yield reading
    finally:
        left.set()


def _run(source: sdk.Source[Any], part: bytes | None, ahead: "queue.Queue[Any]", left: threading.Event) -> None:
    try:
        trio.run(_read_all, source, part, ahead, left)
        _put(ahead, None, left)
    except BaseException as error:  # a border: it is raised where the rows are taken
        _put(ahead, error, left)


async def _read_all(
    source: sdk.Source[Any], part: bytes | None, ahead: "queue.Queue[Any]", left: threading.Event
) -> None:
    calls = Calls("conduit", source)
    try:
        await (calls("open", None) if part is None else calls("open_part", part))
        while not left.is_set():
            reading = await calls("read", BATCH_SIZE)
            await trio.to_thread.run_sync(_put, ahead, reading, left)
    except (EndOfSource, NothingYet):
        return
    finally:
        await calls("teardown")
        calls.close()


def _put(ahead: "queue.Queue[Any]", reading: Any, left: threading.Event) -> None:
    """Wait until there is room, or until nobody wants more."""
    while not left.is_set():
        try:
            ahead.put(reading, timeout=0.2)
        except queue.Full:
            continue
        return


def _row(record: Record, refused: str | None) -> Row:
    payload = record.payload
    return (
        record.position,
        str(record.operation),
        record.metadata,
        _bytes(record.key),
        _bytes(payload.before),
        _bytes(payload.after),
        refused,
    )


def _bytes(data: Data) -> bytes | None:
    return data if data is None or isinstance(data, bytes) else encode_json(data)
