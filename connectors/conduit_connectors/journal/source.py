"""The journal source: reads what is committed in a journal, each record once, in the order of the commits."""

from pathlib import Path
from typing import Literal, Required, TypedDict, Unpack

import msgspec
from pydantic import Field

from conduit_connectors.journal.position import JournalPosition, positions_by_number, positions_inside
from conduit_py import sdk
from conduit_py.journal import (
    HORIZON,
    Checkpoint,
    CommittedReader,
    FileReader,
    Flag,
    JournalFiles,
    Slice,
    decode_bodies,
    decode_body,
)
from conduit_py.sdk import EndOfSource, FatalError, Lag, NothingYet, Reading, Record, RecordRefused


class SourceOptions(sdk.Options):
    """Which journal to read, and what of it."""

    path: Path = Field(description="the directory of the journal; it need not be there yet")
    isolation: Literal["committed", "uncommitted"] = Field(
        "committed", description="uncommitted also reads what transactions never committed, or not yet"
    )
    until: Literal["end"] | None = Field(None, description='"end" completes at what is the end when the source opens')


class SourceArguments(TypedDict, total=False):
    """SourceOptions as a caller writes them, for editors and type checkers."""

    path: Required[str | Path]
    isolation: Literal["committed", "uncommitted"]
    until: Literal["end"] | None


class JournalPart(msgspec.Struct, frozen=True, array_like=True):
    """What a reader finds from a position on until it has read the journal up to an offset."""

    start: bytes
    end: int


class Source(sdk.SplittableSource[SourceOptions]):
    """The records of a journal; the position is an offset and, per producer, what was read of it.

    With `isolation="committed"` each record is read once, whatever its writer repeated, and only when its
    transaction is committed; what a crashed writer left is never read. Reading continues exactly after any record,
    also inside a transaction. So it is exactly-once with a destination that can be, and pipelines joined by
    journals are exactly-once from the first to the last. Any number of sources may read a journal.

    A record that the journal connector did not write becomes a dead letter with its bytes. A damaged journal, and a
    position that was pruned, stop the pipeline with an error that names the offsets: see `conduit-py journal verify`.

    On Spark, with `until="end"`, the driver walks over the frames, decodes no record of them, and executors read the
    parts that it finds: what is committed at a place in a journal depends on all before it. All must see its directory.
    """

    # Mostly from the page cache. On a slow disk the runtime moves `read` to a thread.
    blocking = None

    _committed: CommittedReader | None = None
    _plain: FileReader | None = None

    def __init__(self, **options: Unpack[SourceArguments]) -> None:
        super().__init__(**options)

    def datasets(self) -> list[sdk.Dataset]:
        return [sdk.Dataset.at(str(self.options.path))]

    @property
    def endless(self) -> bool:
        return self.options.until is None

    def probe(self) -> str:
        if not self.options.path.exists():
            return f"{self.options.path} is not there yet; the source waits for it"
        files = JournalFiles(self.options.path)
        files.check_end()
        return f"the journal has {files.head()} bytes"

    def open(self, position: bytes | None) -> None:
        options = self.options
        self._files = JournalFiles(options.path)
        start = JournalPosition("", Checkpoint()) if position is None else JournalPosition.decode(position)
        self._files.check_end()
        self._id = self._identify(start)
        self._skip = start.skip
        self._end = self._files.head() if options.until else None
        self._bodies: list[bytes] = []
        self._positions: list[bytes] = []
        self._taken = 0
        self._error: FatalError | None = None
        self._split_from = JournalPosition(self._id, start.checkpoint, start.skip).encode()
        if options.isolation == "committed":
            self._committed = CommittedReader(self._files, start.checkpoint)
        else:
            self._plain = self._files.reader(start.checkpoint.offset)

    def reads_alone(self) -> str | None:
        if self.options.until is None:
            return 'it waits for more at the end: with until="end" it is divided into parts'
        return None

    def split(self, size: int) -> bytes:
        begin = self._offset()
        if self._is_beyond(self._end):
            raise EndOfSource
        while not self._is_beyond(begin + size) and not self._is_beyond(self._end):
            # Only frames are looked at. The end of a part is where no transaction is half read.
            found = self._next_committed() if self._committed is not None else self._next_plain()
            if found is None:
                break
        part = JournalPart(self._split_from, self._offset())
        if part.end == begin:
            raise EndOfSource
        checkpoint = Checkpoint(part.end) if self._committed is None else self._committed.sequencer.checkpoint(HORIZON)
        self._split_from = JournalPosition(self._id, checkpoint).encode()
        return msgspec.msgpack.encode(part)

    def open_part(self, part: bytes) -> None:
        found = msgspec.msgpack.decode(part, type=JournalPart)
        self.open(found.start)
        self._end = found.end

    def _is_beyond(self, end: int | None) -> bool:
        within_run = self._committed is not None and not self._committed.at_end_of_run()
        return end is not None and not within_run and self._offset() >= end

    def check_position(self, position: bytes) -> None:
        JournalPosition.decode(position)

    def read(self, n: int) -> list[Record] | Reading:
        records: list[Record] = []
        refused: dict[int, str] = {}
        while len(records) < n and (self._taken < len(self._bodies) or self._more(after_some=bool(records))):
            stop = min(self._taken + n - len(records), len(self._bodies))
            self._decode(slice(self._taken, stop), records, refused)
            self._taken = stop
        if not records:
            raise EndOfSource if self._at_end() else NothingYet
        return Reading(records, refused) if refused else records

    def lag(self) -> Lag:
        return Lag(bytes=max(0, self._files.end - self._offset()))

    def teardown(self) -> None:
        for reader in (self._committed, self._plain):
            if reader is not None:
                reader.close()

    def _decode(self, which: slice, records: list[Record], refused: dict[int, str]) -> None:
        bodies, positions = self._bodies[which], self._positions[which]
        decoded = decode_bodies(bodies, positions)
        if decoded is not None:
            records += decoded
            return
        for body, position in zip(bodies, positions, strict=True):
            try:
                records.append(decode_body(body, position))
            except RecordRefused as reason:
                refused[len(records)] = reason.message
                records.append(Record.of(body, position=position))

    def _identify(self, start: JournalPosition) -> str:
        """Return the id of the journal. Raises FatalError if it is missing, or is not the journal of the position."""
        id = self._files.id
        if id is None and (start.id or self.options.until):
            raise FatalError(f"there is no journal in {self.options.path}", suggestion="correct the path, or create it")
        if start.id and start.id != id:
            raise FatalError(
                f"the journal in {self.options.path} was replaced: it is {id}, and the position is in {start.id}",
                suggestion="forget the position of this source, or run with --fresh, to read it from the beginning",
            )
        return id or ""

    def _more(self, *, after_some: bool) -> bool:
        """As `_fill`, but messages before damage are returned first: the next read raises the error."""
        if self._error is None:
            try:
                return self._fill()
            except FatalError as error:
                self._error = error
        if after_some:
            return False
        kept, self._error = self._error, None
        raise kept

    def _fill(self) -> bool:
        """Buffer the next messages; False when there are none now."""
        if self._at_end():
            return False
        found = self._next_committed() if self._committed is not None else self._next_plain()
        if found is None:
            return False
        if not self._id:
            self._id = self._files.id or ""
        self._positions = self._positions_of(found)
        self._bodies = found.frame.bodies[found.first : found.stop]
        self._taken = 0
        return True

    def _next_committed(self) -> Slice | None:
        assert self._committed is not None
        found = self._committed.read()
        if found is not None and not found.frame.id.clock:
            return self._without_skipped(found)
        return found

    def _next_plain(self) -> Slice | None:
        assert self._plain is not None
        while (frame := self._plain.read()) is not None:
            if frame.id.flags != Flag.ACK:
                return self._without_skipped(Slice(frame, 0, frame.count))
        return None

    def _without_skipped(self, found: Slice) -> Slice:
        """Skip the messages of the frame that were read before the restart."""
        skip, self._skip = self._skip, 0
        return found._replace(first=skip)

    def _positions_of(self, found: Slice) -> list[bytes]:
        reader = self._committed
        if reader is None:
            positions = positions_by_number(self._id, Checkpoint(), found)
            positions[-1] = JournalPosition(self._id, Checkpoint(found.frame.end)).encode()
            return positions
        sequencer = reader.sequencer
        if found.frame.id.clock:
            positions = positions_inside(self._id, sequencer, found)
        else:
            positions = positions_by_number(self._id, Checkpoint(0, sequencer.producers()), found)
        if reader.at_end_of_run():
            positions[-1] = JournalPosition(self._id, sequencer.checkpoint(HORIZON)).encode()
        return positions

    def _offset(self) -> int:
        reader = self._committed or self._plain
        return reader.offset if reader is not None else 0

    def _at_end(self) -> bool:
        if self._end is None or self._taken < len(self._bodies):
            return False
        within_run = self._committed is not None and self._bodies and not self._committed.at_end_of_run()
        return not within_run and self._offset() >= self._end
