"""ExactlyOnceScenario: an exactly-once pipeline of every kind of end, in memory, and what must hold of it."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import trio
from pydantic import Field, InstanceOf

from conduit_py import sdk
from conduit_py.batch import Batch
from conduit_py.errors import RecordRefused
from conduit_py.pipeline import DeadLetters, Destination, Pipeline, Source
from conduit_py.pipeline_settings import TransactionLimits
from conduit_py.record import Record
from conduit_py.sdk.plugin import Options
from conduit_py.sdk.processor import processor
from conduit_py.sdk.state import Defer, State
from conduit_py.store.claim import Changes
from conduit_py.store.dead_letter_store import SqlLetters
from conduit_py.store.memory import MemoryDeadLetterStore, MemoryStore
from conduit_py.store.store import Kind, StoredEntry
from conduit_py.store.stored_letter import LetterFilter
from conduit_py.store.tables import Tables
from conduit_py.testing.crash import durable
from conduit_py.testing.fake_destinations import (
    FakeKeyedDestination,
    FakeStagedDestination,
    FakeStorage,
    FakeTransactionalDestination,
)

T = TypeVar("T")


class ScenarioStore(MemoryStore):
    """A memory store whose every write is a moment at which its run may end."""

    def __init__(self) -> None:
        super().__init__()
        self.letters: _Letters = _Letters(self._enter, self._enter_write)

    async def transact(self, work: Callable[[Tables], T]) -> T:
        async with durable("store.transact"):
            return work(self._tables)

    async def _save(self, rows: list[StoredEntry]) -> None:
        async with durable("store.save"):
            self._rows.update({row[:3]: row.value for row in rows})

    async def _forget(self, pipeline: str, kind: Kind, node: str | None) -> None:
        async with durable("store.forget"):
            await super()._forget(pipeline, kind, node)


class _Letters(MemoryDeadLetterStore):
    async def _change(self, work: Callable[[SqlLetters], T]) -> T:
        async with durable("letters.change"):
            return await super()._change(work)


class NumbersOptions(Options):
    """The options of a source of numbers."""

    first: int
    count: int
    acked: Annotated[InstanceOf[Callable[[str, list[int]], None]], Field(description="is called with what was acked")]
    name: str


class Numbers(sdk.SourceConnector[NumbersOptions]):
    """Gives consecutive numbers, one record at a time, and ends."""

    async def open(self, position: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        self._next = self.options.first if position is None else int(position) + 1

    async def read(self, n: int) -> list[Record]:
        await trio.lowlevel.checkpoint()
        if self._next == self.options.first + self.options.count:
            raise sdk.EndOfSource
        number, self._next = self._next, self._next + 1
        return [Record.of({"n": number}, position=str(number).encode())]

    async def ack(self, positions: Sequence[bytes]) -> None:
        async with durable("source.ack"):
            self.options.acked(self.options.name, [int(position) for position in positions])


class GroupedNumbers(Numbers):
    """Gives consecutive numbers in groups of two. A group ends with progress, whose position has a leading zero."""

    has_groups: ClassVar[bool] = True

    async def open(self, position: bytes | None) -> None:
        await super().open(position)
        self._in_group = position is not None and not position.startswith(b"0")

    async def read(self, n: int) -> sdk.Reading:  # type: ignore[override]
        ends = self._next % 2 == 0 or self._next == self.options.first + self.options.count
        if self._in_group and ends:
            await trio.lowlevel.checkpoint()
            self._in_group = False
            return sdk.Reading([], position=b"0%d" % (self._next - 1))
        records = await super().read(n)
        self._in_group = True
        return sdk.Reading(records, continues=True)

    async def ack(self, positions: Sequence[bytes]) -> None:
        await super().ack([position for position in positions if position.startswith(b"0")])


class ExactlyOnceScenario:
    """Two sources, a processor with state, and a destination of each level; and what it all comes to.

    Number `flaky` is refused by a processor in every other run, so that a run that takes over may decide about
    it differently: it must be an output or a letter, once, and never both. With `deferring` a processor has
    transactions end before every even number, wherever that comes. With `forwarding` the pipeline sends what is
    published, to a receiver that recognises it by its key. With `grouped` the sources are atomic, transactions are
    smaller than their groups, and a position inside of a group is never committed.
    """

    SOURCES: tuple[str, ...] = ("left", "right")

    def __init__(
        self,
        *,
        with_home: bool,
        count: int = 3,
        flaky: int = 101,
        deferring: bool = False,
        forwarding: bool = False,
        grouped: bool = False,
    ) -> None:
        self.with_home = with_home
        self.grouped = grouped
        self.deferring = deferring
        self.forwarding = forwarding
        self.count = count
        self.flaky = flaky
        self.store = ScenarioStore()
        self.storages = {"home": FakeStorage(), "staged": FakeStorage(), "keyed": FakeStorage(), "audit": FakeStorage()}
        self.runs = 0
        self.acks: dict[int, dict[str, list[int]]] = {}
        self.violations: list[str] = []

    @property
    def numbers(self) -> dict[str, list[int]]:
        return {name: list(range(100 * at, 100 * at + self.count)) for at, name in enumerate(self.SOURCES, 1)}

    def pipeline(self) -> Pipeline:
        """The pipeline as the next run has it."""
        self.runs += 1
        run, acks = self.runs, self.acks.setdefault(self.runs, {name: [] for name in self.SOURCES})

        def acked(name: str, numbers: list[int]) -> None:
            acks[name] += numbers
            self._check_acks(run, name)

        @processor
        def moody(record: Record) -> Record:
            if self.refuses(record.payload["n"], run):
                raise RecordRefused("not today")
            return record

        names = ["home", "staged", "keyed"] if self.with_home else ["staged", "keyed"]
        kinds: dict[str, Any] = {
            "home": FakeTransactionalDestination,
            "staged": FakeStagedDestination,
            "keyed": FakeKeyedDestination,
        }
        kind = GroupedNumbers if self.grouped else Numbers
        return Pipeline(
            "scenario",
            sources=[
                Source(name, kind(first=numbers[0], count=self.count, acked=acked, name=name), atomic=self.grouped)
                for name, numbers in self.numbers.items()
            ],
            processors=[moody, *([parted] if self.deferring else []), drop_repeats, summed],
            destinations=[Destination(name, kinds[name](storage=self.storages[name])) for name in names],
            dead_letters=DeadLetters("journal"),
            delivery="exactly_once",
            transaction=TransactionLimits(max_records=6 if self.deferring else 1 if self.grouped else 2),
            outbox={"audit": FakeKeyedDestination(storage=self.storages["audit"])} if self.forwarding else None,
        )

    def refuses(self, number: int, run: int) -> bool:
        """Whether the first processor refuses a number in a run."""
        return number == self.flaky and run % 2 == 1

    def look(self) -> None:
        """What must hold at every moment: readers see nothing that is not committed (I4)."""
        committed = self._committed()
        for name in ("home", "staged"):
            for number in filter(self._is_read, self.storages[name].visible):
                source = self.SOURCES[number // 100 - 1]
                if number > committed.get(source, -1):
                    self.violations.append(f"{name} shows {number}, but {source} is committed to {committed}")

    def _is_read(self, number: int) -> bool:
        return number >= 100

    def _committed(self) -> dict[str, int]:
        places = {
            node: value
            for (pipeline, kind, node), value in self.store._rows.items()
            if (pipeline, kind) == ("scenario", "position")
        }
        if self.with_home and (changes := self.storages["home"].changes) is not None:
            places |= Changes.decode(changes).positions
        torn = {source: value for source, value in places.items() if self.grouped and not value.startswith(b"0")}
        if torn:
            self.violations.append(f"half of a group is committed: {torn}")
        return {source: int(value) for source, value in places.items() if source in self.SOURCES}

    def _check_acks(self, run: int, name: str) -> None:
        """I12: in order, at most once, only after the commit."""
        said = self.acks[run][name]
        if said != sorted(set(said)):
            self.violations.append(f"{name} was acked {said} in run {run}")
        if said and said[-1] > self._committed().get(name, -1):
            self.violations.append(f"{name} was acked {said[-1]} before that was committed")

    async def check(self) -> list[str]:
        """What must hold at the end, when everything is read: the promise itself."""
        box = self.store.letters
        ids = [summary.id for summary in (await box.page(LetterFilter())).letters]
        letters = sorted([int((await box.letter(id)).position) for id in ids])
        for name in self.SOURCES:
            self._check_source(name, [number for number in letters if number in self.numbers[name]])
        claim = await self.store.claim("scenario")
        expected = self.processed(letters)
        kept = dict(await claim.scan())
        state = State()
        state.load({"sum": kept.get(b"summed\0sum", b"\0")}, claim.seen)
        if state.get("sum") != sum(expected):
            self.violations.append(f"the state is {state.get('sum')}, not {sum(expected)} (I6)")
        if self.deferring:
            state.load({"seen": kept.get(b"parted\0seen", b"\x90")}, claim.seen)
            self._check_order(state.get("seen"), expected)
        pending = await self.store.outbox.lease("audit", "test", 60, 1000) or []
        sent = [int(Record.from_json(each.body).payload["n"]) for each in pending]
        if self.forwarding:
            self._check_forwarded(sent, expected)
        elif sorted(sent) != expected:
            self.violations.append(f"the outbox has {sent}, not {expected} (I6)")
        return self.violations

    def _check_forwarded(self, left: list[int], expected: list[int]) -> None:
        """Everything that was published has arrived, in order, and is gone from the outbox."""
        arrived = sorted(self.storages["audit"].by_key.values(), key=lambda number: number // 100)
        if left or arrived != expected:
            self.violations.append(f"{arrived} were forwarded and {left} are left, of {expected}")

    def _check_order(self, seen: list[int], expected: list[int]) -> None:
        """A processor that defers has each record once, and those of a source in their order."""
        by_source = sorted(seen, key=lambda number: number // 100)
        if by_source != expected:
            self.violations.append(f"the processor that defers has seen {seen}, not {expected}, in some order")

    def processed(self, letters: list[int]) -> list[int]:
        """The numbers that went through all processors, sorted, if these are left as letters."""
        return sorted(n for numbers in self.numbers.values() for n in numbers if n not in letters)

    def _check_source(self, name: str, letters: list[int]) -> None:
        """I11: each input is an output, once and in order, or a letter."""
        expected = [number for number in self.numbers[name] if number not in letters]
        if len(letters) != len(set(letters)):
            self.violations.append(f"letters of {name} repeat: {letters}")
        shown = ["home", "staged"] if self.with_home else ["staged"]
        seen = {each: [n for n in self.storages[each].visible if n in self.numbers[name]] for each in shown}
        for each, got in seen.items():
            if got != expected:
                self.violations.append(f"{each} shows {got} of {name}, not {expected}")
        keyed = sorted(n for n in self.storages["keyed"].by_key.values() if n in self.numbers[name])
        # One that was refused only in the run that committed may have been written before, under its key.
        if [number for number in keyed if number not in letters] != expected:
            self.violations.append(f"keyed has {keyed} of {name}, not {expected}")


@processor(state=True, batch=True, name="unrepeated")
async def drop_repeats(batch: Batch, state: State) -> list[Record | None]:
    first = await state.once("numbers", [str(record.payload["n"]).encode() for record in batch])
    return [record if new else None for record, new in zip(batch, first, strict=True)]


@processor(state=True, defers=True, name="parted")
def parted(record: Record, state: State) -> Record:
    state.put("seen", [*state.get("seen", []), record.payload["n"]])
    if record.payload["n"] % 2 == 0 and not state.first:
        raise Defer
    return record


@processor(state=True, name="summed")
def summed(record: Record, state: State) -> Record:
    state.put("sum", state.get("sum", 0) + record.payload["n"])
    state.publish("audit", record)
    return record
