"""FileReader: reads the segments of a journal, in any process, while others append to it."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from conduit_py.journal.disk import read_mark, synced_end
from conduit_py.journal.errors import JournalDamaged, JournalFailed, JournalGap, JournalUnfit, cut_short, emptied
from conduit_py.journal.frame import (
    GAP,
    HEADER_SIZE,
    MESSAGES,
    SEAL,
    Frame,
    Header,
    NotASegment,
    decode_header,
    segment_name,
)
from conduit_py.journal.log import HEAD, LogReader
from conduit_py.journal.message_id import MessageUuid
from conduit_py.journal.segment import Damage, Segment, bases, frame_at, walk

_logger = logging.getLogger(__name__)

_BLOCK = 256 * 1024


class FileReader(LogReader):
    """Needs no lock. With `durable` it returns only frames that survive a power cut.

    Otherwise a reader could act on messages that the journal no longer has after a power cut. Their writer syncs
    them soon; a reader that is faster syncs them itself, which costs nothing if they are synced.
    """

    def __init__(self, directory: Path | str, offset: int = 0, *, durable: bool = True) -> None:
        self.directory = Path(directory)
        self.name = str(directory)
        self.offset = offset
        self.skipped: list[tuple[int, int]] = []
        """The gaps that were passed: places where damage had been set aside."""
        self._durable_only = durable
        self._durable = 0
        self._segment: Segment | None = None
        self._block, self._at = b"", 0
        self._after_seal = False
        if offset == HEAD:
            self._go_to_head()

    def read(self) -> Frame | None:
        while True:
            if self._segment is None and not self._open():
                return None
            found = self._next()
            if found is None:
                if not self._leave_without_seal():
                    return None
                continue
            header, content = found
            if header.kind == MESSAGES:
                # The offset stays, so the next call looks at the same frame again.
                if self._durable_only and not self._is_durable(header):
                    return None
                self._advance(header.size)
                return _frame(self.name, header, content)
            self._skip_frame(header)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _skip_frame(self, header: Header) -> None:
        """Go past a frame that is not of messages."""
        if header.kind == SEAL:
            self._move_to(header.end)
            self._after_seal = True
        elif header.kind == GAP:
            _logger.warning(
                "journal %s: offsets %d to %d are a gap: damage was set aside there",
                self.name,
                header.begin,
                header.end,
            )
            self.skipped.append((header.begin, header.end))
            self._continue_at(header.end)
        else:
            self._continue_at(header.end)
            raise JournalDamaged(self.name, header.begin, header.end, f"a frame of unknown kind {header.kind}")

    def _next(self) -> tuple[Header, bytes] | None:
        """The frame at the offset; None when it is not there yet."""
        assert self._segment is not None
        found = frame_at(self._block, self._at, self.offset)
        if found is not None:
            return found
        header = decode_header(self._block, self._at, self.offset) or self._segment.header(self.offset)
        # A gap is as large as the damage was, and its bytes are not needed.
        size = max(_BLOCK, header.size if header is not None and header.kind != GAP else 0)
        self._block, self._at = self._segment.read(self.offset, size), 0
        if header is not None and header.kind == GAP:
            return header, b""
        found = frame_at(self._block, 0, self.offset)
        if found is None and self._block:
            self._raise_damage()
        return found

    def _raise_damage(self) -> None:
        """Raise if bytes that are no frame are damage: if they are the last, they may be a running append."""
        segment = self._segment
        assert segment is not None
        # The mark first: an append may become whole, and be confirmed, in between.
        confirmed = synced_end(self.directory, segment.info.journal)
        rest = segment.read(self.offset, segment.end - self.offset)
        found = next(walk(rest, self.offset), None)
        if not isinstance(found, Damage):
            return  # An append has become whole meanwhile.
        # The last bytes may still become whole, unless their append was confirmed: then they were whole before.
        if not found.tail or found.begin < confirmed or self._following() is not None:
            following = self._following() if found.tail else None
            if following is None:
                self._continue_at(found.end)
            else:
                self._move_to(following)
            raise JournalDamaged(self.name, found.begin, following or found.end, found.what)

    def _following(self) -> int | None:
        """Where the next segment begins, if there is one."""
        assert self._segment is not None
        return next((base for base in bases(self.directory) if base > self._segment.base), None)

    def _leave_without_seal(self) -> bool:
        """Go to the next segment if one is there although this one has no seal: its writer died in between."""
        if self._segment is None:
            return True
        if self._segment.end != self.offset:
            return False
        # Or the seal was damaged, and set aside with what is before it.
        for following in (self.offset + HEADER_SIZE, self.offset):
            if following != self._segment.base and (self.directory / segment_name(following)).exists():
                self._move_to(following)
                return True
        return False

    def _is_durable(self, header: Header) -> bool:
        if header.end <= self._durable:
            return True
        self._durable = max(self._durable, header.synced)
        if header.end > self._durable:
            assert self._segment is not None
            # Taken before the sync, which may not cover what is appended while it runs.
            end = self._segment.end
            try:
                os.fdatasync(self._segment.descriptor)
            except OSError as error:
                raise JournalFailed(f"journal {self.name}: what was read is not on the disk: {error}") from error
            self._durable = end
        # Its writer may have failed to sync and removed it meanwhile: then the file is shorter now.
        return header.end <= self._durable

    def _advance(self, size: int) -> None:
        self._at += size
        self.offset += size

    def _continue_at(self, offset: int) -> None:
        self.offset = offset
        self._block, self._at = b"", 0

    def _move_to(self, base: int) -> None:
        self.close()
        self._continue_at(base)

    def _open(self) -> bool:
        """Open the segment of the offset; whether there is one yet. Raises JournalGap where it is missing."""
        starts = bases(self.directory)
        if not starts:
            return False
        base = max((each for each in starts if each <= self.offset), default=None)
        if self._after_seal and base != self.offset:
            self._go_past_gap(starts)
        self._after_seal = False
        if base is None:
            self._go_to_oldest(starts[0])
            base = starts[0]
        try:
            self._segment = Segment.open(self.directory, base)
        except NotASegment as error:
            self._skip_segment(base, str(error))
        assert self._segment is not None
        missing_until = self._segment.info.missing_until
        if missing_until is not None:
            self.skipped.append((self.offset, missing_until))
            _logger.warning("journal %s: offsets %d to %d are lost", self.name, self.offset, missing_until)
            self._move_to(missing_until)
            return self._open()
        self._check_within(self._segment)
        return True

    def _go_to_oldest(self, oldest: int) -> None:
        begin = self.offset
        self._continue_at(oldest)
        # The end of a segment is the start of the next, and 0 stands for the oldest.
        if begin not in (0, oldest - HEADER_SIZE):
            raise JournalGap(self.name, begin, oldest, "are not there any more: they were pruned")

    def _go_past_gap(self, starts: list[int]) -> None:
        """Raise for a segment that is missing: a seal is written only when the next segment exists."""
        begin, end = self.offset, next((each for each in starts if each > self.offset), None)
        if end is None:
            raise JournalUnfit(
                f"journal {self.name} goes on at offset {begin}, but the segment that begins there is missing",
                suggestion=f"put {segment_name(begin)} back, or give it up: `conduit-py journal repair {self.name}`",
            )
        self._after_seal = False
        self._continue_at(end)
        raise JournalGap(self.name, begin, end, "are missing: a segment is lost")

    def _skip_segment(self, base: int, why: str) -> None:
        following = next((each for each in bases(self.directory) if each > base), None)
        if following is None:
            raise JournalUnfit(f"segment {segment_name(base)} of journal {self.name} cannot be read: {why}")
        begin = self.offset
        self._move_to(following)
        raise JournalDamaged(self.name, begin, following, f"a segment that cannot be read ({why})")

    def _check_within(self, segment: Segment) -> None:
        self.offset = max(self.offset, segment.first)
        end = segment.end
        if self.offset <= end:
            return
        following = self._following()
        begin = self.offset
        if following is None:
            self.close()
            raise JournalGap(self.name, end, begin, "are missing: the journal ends before them")
        self._move_to(following)
        raise JournalGap(self.name, begin, following, "are missing: a segment is lost")

    def _go_to_head(self) -> None:
        self.offset = 0
        starts = bases(self.directory)
        if starts:
            segment = Segment.open(self.directory, starts[-1])
            self._segment, self.offset = segment, segment.first
            for found in segment.walk():
                if not isinstance(found, Damage):
                    self.offset = found[0].end


class JournalFiles:
    """The files of a journal, read-only. They need not exist yet."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.name = str(directory)

    def reader(self, offset: int = 0) -> FileReader:
        return FileReader(self.directory, offset)

    @property
    def id(self) -> str | None:
        """The id of the journal; None while there is none."""
        for base in bases(self.directory):
            with suppress(NotASegment):
                segment = Segment.open(self.directory, base)
                segment.close()
                return segment.info.journal
        return None

    def head(self) -> int:
        """Where the last frame ends that is whole now, or that was confirmed. Reads the last segment to find out."""
        reader = self.reader(HEAD)
        reader.close()
        # A last frame that was confirmed and is damaged counts: who reads up to here must meet the damage.
        return max(reader.offset, self._confirmed)

    def check_end(self) -> None:
        """Raise JournalUnfit if something is missing at the end that an append had confirmed."""
        # The mark first: a writer may create the journal or append in between, and the files then end behind it.
        mark, confirmed = read_mark(self.directory), self._confirmed
        if mark is not None and not bases(self.directory):
            raise emptied(self.name, mark[1])
        if self.end < confirmed:
            raise cut_short(self.name, segment_name(bases(self.directory)[-1]), self.end, confirmed)

    @property
    def _confirmed(self) -> int:
        id = self.id
        return 0 if id is None else synced_end(self.directory, id)

    @property
    def end(self) -> int:
        """Where the files end now, found quickly: an append under way, or never finished, counts."""
        starts = bases(self.directory)
        return starts[-1] + (self.directory / segment_name(starts[-1])).stat().st_size if starts else 0


def read_backward(directory: Path | str) -> Iterator[Frame]:
    """The frames that are there now, the newest first. Damage is skipped."""
    for base in reversed(bases(Path(directory))):
        segment = Segment.open(Path(directory), base)
        try:
            found = [each for each in segment.walk() if not isinstance(each, Damage) and each[0].kind == MESSAGES]
        finally:
            segment.close()
        for header, content in reversed(found):
            yield _frame(str(directory), header, content)


def _frame(journal: str, header: Header, content: bytes) -> Frame:
    packed = content[header.registers_size :] if header.registers_size else content
    return Frame(journal, header.begin, header.end, MessageUuid.from_bytes(header.id), header.messages, packed)
