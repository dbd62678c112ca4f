"""The generator source: makes artificial records at a chosen rate."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Unpack

import trio
from pydantic import AwareDatetime, Field, model_validator
from trio import current_time, sleep_until

from conduit_connectors.generator.shape import BLOCK, Maker, RecordBlock, Shape, ShapeArguments
from conduit_connectors.numbering import number_of, positions_of
from conduit_py import sdk
from conduit_py.sdk import Columns, EndOfSource, FatalError, Operation, Options, Payloads

# A shorter pause costs more than it gives: at high rates several records become due together.
_TICK_SECONDS = 0.001
# At most this much time lost to back-pressure is made up for, or the records would come in a flood.
_CATCH_UP_SECONDS = 1.0


class Burst(Options):
    """Records for a while, then none for a while, again and again."""

    generate_seconds: float = Field(default=1.0, gt=0, description="how long records are generated")
    sleep_seconds: float = Field(gt=0, description="how long none are generated after that")


class RecordPace:
    """Limits records to `rate` per second (0 is no limit), and to the bursts if there are any."""

    def __init__(self, rate: float, burst: Burst | None) -> None:
        self._rate = rate
        self._burst = burst
        self._due = current_time()
        self._burst_ends = self._due + (burst.generate_seconds if burst else 0)

    async def wait(self, n: int) -> int:
        """Wait until a record is due; return how many are due by then, at most `n`."""
        while True:
            await self._wait_for_burst()
            if not self._rate:
                return n
            now = current_time()
            if self._due <= now:
                self._due = max(self._due, now - _CATCH_UP_SECONDS)
                due = min(n, int((now - self._due) * self._rate) + 1)
                self._due += due / self._rate
                return due
            await sleep_until(max(self._due, now + _TICK_SECONDS))

    async def _wait_for_burst(self) -> None:
        if self._burst is None or current_time() < self._burst_ends:
            return
        begins = self._burst_ends + self._burst.sleep_seconds
        await sleep_until(begins)
        begins = max(begins, current_time())
        self._burst_ends = begins + self._burst.generate_seconds
        self._due = max(self._due, begins)


_COLLECTION = "opencdc.collection"
_UNLIMITED_STEP = timedelta(milliseconds=1)
_RECORD_SIZE = 128
"""About the size of a record in a file."""


class SourceOptions(Shape):
    """Options of the generator source."""

    rate: float = Field(default=0, ge=0, description="records per second; 0 is as fast as they are taken")
    count: int | None = Field(default=None, ge=0, description="how many records there are; None is without end")
    burst: Burst | None = Field(default=None, description="generate for a while, pause for a while")
    collections: list[str] = Field(
        default=[], description='the collections that records take turns to belong to; "" is none'
    )
    shapes: dict[str, Shape] = Field(
        default={}, description="the format, fields, path and operations of collections that have their own"
    )
    seed: int = Field(default=0, description="another seed makes other records")
    start: AwareDatetime = Field(
        default=datetime(2020, 1, 1, tzinfo=UTC), description="the time in the first record's time fields"
    )

    @model_validator(mode="after")
    def _shapes_are_of_collections(self) -> "SourceOptions":
        unknown = [name for name in self.shapes if name not in self.collections]
        if unknown:
            raise ValueError(f"shapes has {', '.join(map(repr, unknown))}, which collections does not have")
        return self


class SourceArguments(ShapeArguments, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    rate: float
    count: int | None
    burst: Burst | Mapping[str, float] | None
    collections: Sequence[str]
    shapes: Mapping[str, Shape | Mapping[str, Any]]
    seed: int
    start: str | datetime


class Source(sdk.SplittableSource[SourceOptions]):
    """Records that are a function of the seed and their number, counted from 0; the position is the number.

    At-least-once on its own, exactly-once with a destination that can: a run that continues after a position
    makes the same records as an uninterrupted one, at any time of day. So `time` fields do not show the clock:
    they begin at `start` and advance by `1 / rate` seconds a record, by a millisecond without a rate. The key is
    the number in decimal. Two generators with the same options make the same records, so that their results can
    be compared: give each its own `seed` where they should differ.

    Field types: `index` (the number), `int` (31 bits), `float` (from 0 to 1), `string`, `bool`, `time`,
    `duration` (below an hour). A delete has the payload before, an update both, others the one after.
    The rate is kept over time, but of a delay by back-pressure at most a second is made up for.
    """

    _end: int | None = None
    """The number at which a part ends."""

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    @property
    def endless(self) -> bool:
        return self.options.count is None

    @property
    def gives(self) -> Any:
        forms: list[Any] = [dict if shape.format == "structured" else bytes for shape in self._shapes()]
        deletes = any(Operation.DELETE in shape.operations for shape in self._shapes())
        return reduce(or_, [*forms, None] if deletes else forms)

    def _shapes(self) -> list[Shape]:
        options = self.options
        return [options.shapes.get(name, options) for name in options.collections] if options.shapes else [options]

    async def open(self, position: bytes | None) -> None:
        options = self.options
        self._next = 0 if position is None else number_of("generator", position) + 1
        self._pace = RecordPace(options.rate, options.burst)
        self._makers = [await self._maker(shape) for shape in self._shapes()]
        self._block = RecordBlock([], [], [])
        self._kind = self.gives if isinstance(self.gives, type) else None
        self._changes = any(shape.operations != [Operation.CREATE] for shape in self._shapes())

    def check_position(self, position: bytes) -> None:
        number_of("generator", position)

    async def read(self, n: int) -> Payloads:
        await trio.lowlevel.checkpoint()
        end = self.options.count if self._end is None else self._end
        if end is not None:
            n = min(n, end - self._next)
            if n <= 0:
                raise EndOfSource
        return self._take(await self._pace.wait(n))

    def reads_alone(self) -> str | None:
        options = self.options
        if options.rate or options.burst is not None:
            return "only one process can keep its pace"
        if options.count is None:
            return "it has no end: `count` is missing"
        if any(shape.path is not None for shape in (options, *options.shapes.values())):
            return "its content is in a file of the driver"
        return None

    async def split(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        assert self.options.count is not None
        start, self._next = self._next, min(self._next + max(1, size // _RECORD_SIZE), self.options.count)
        if start >= self._next:
            raise EndOfSource
        return b"%d %d" % (start, self._next)

    async def open_part(self, part: bytes) -> None:
        start, self._end = map(int, part.split())
        await self.open(positions_of("generator", range(start - 1, start))[0] if start else None)

    async def _maker(self, shape: Shape) -> Maker:
        options = self.options
        step = timedelta(seconds=1 / options.rate) if options.rate else _UNLIMITED_STEP
        content = await _content(shape.path) if shape.path is not None else b""
        return Maker(shape, content, options.seed, options.start, step)

    def _take(self, n: int) -> Payloads:
        """Return the next `n` records, of as many blocks as they are in."""
        numbers = range(self._next, self._next + n)
        taken = RecordBlock([], [], [])
        while self._next < numbers.stop:
            if not self._block.afters:
                number, start = divmod(self._next, BLOCK)
                self._block = self._make_block(number).between(start, BLOCK)
            count = min(numbers.stop - self._next, len(self._block.afters))
            taken.add(self._block.between(0, count))
            # Each record is returned once, so the pipeline may change it, and it can be freed.
            self._block = self._block.between(count, BLOCK)
            self._next += count
        return Payloads(taken.afters, positions_of("generator", numbers), self._kind, self._columns(numbers, taken))

    def _columns(self, numbers: range, taken: RecordBlock) -> Columns:
        columns = Columns(keys=list(map(b"%d".__mod__, numbers)))
        if self._changes:
            columns.operations, columns.befores = taken.operations, taken.befores
        if names := self.options.collections:
            about = [{_COLLECTION: name} if name else {} for name in names]
            columns.metadata = [dict(about[number % len(names)]) for number in numbers]
        return columns

    def _make_block(self, number: int) -> RecordBlock:
        """Return the parts of a block; collections take turns."""
        blocks = [maker.block(number) for maker in self._makers]
        if len(blocks) == 1:
            return blocks[0]
        turns = [blocks[(number * BLOCK + place) % len(blocks)] for place in range(BLOCK)]
        return RecordBlock(
            [block.operations[place] for place, block in enumerate(turns)],
            [block.befores[place] for place, block in enumerate(turns)],
            [block.afters[place] for place, block in enumerate(turns)],
        )


async def _content(path: Path) -> bytes:
    try:
        return await trio.Path(path).read_bytes()
    except OSError as error:
        raise FatalError(
            f"cannot read {path}: {error.strerror}", suggestion="check path and its permissions"
        ) from error
