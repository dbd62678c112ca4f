"""FileLog: a journal in a directory of segment files.

Every append takes the journal's lock, reads what other processes appended since, checks the registers,
writes, and syncs by its policy. So one writer at a time checks and changes the registers. A process that was
suspended reads everything that happened in between before it writes a byte.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

from conduit_py.errors import ConduitError
from conduit_py.journal.disk import WAIT_SECONDS, AppendLock, Disk, SyncMark, directory_error
from conduit_py.journal.errors import FrameTooLarge, JournalFailed, JournalFull
from conduit_py.journal.file_reader import FileReader, read_backward
from conduit_py.journal.frame import (
    FRAME_SIZE_MAX,
    HEADER_SIZE,
    SEAL,
    Frame,
    encode_frame,
    mark,
    message_header,
    pack_bodies,
    segment_name,
)
from conduit_py.journal.log import Append, Commit, Log, SyncPolicy, registers_for
from conduit_py.journal.registers import Registers, encode_registers
from conduit_py.journal.segment import (
    Damage,
    bases,
    check_tail,
    create_segment,
    cut_tail,
    open_last,
    open_segment,
    registers_after,
    set_aside,
)

SEGMENT_SIZE = 64 * 2**20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileLogOptions(TypedDict, total=False):
    """The options of FileLog as a caller writes them, for editors and type checkers."""

    sync: SyncPolicy
    segment_size: int
    disk: Disk | None
    wait_seconds: float


class FileLog(Log):
    """The journal in `directory`, which is created if it is missing.

    Opening verifies the last segment as it is on the disk: an append that never ended is cut off, damage
    between frames is set aside; both are logged, with their offsets, and kept in `quarantine/`. If something is missing
    at the end that an append had confirmed, opening raises JournalUnfit and changes nothing. After a failed fsync
    nothing more is appended until the journal is opened again: the system may have dropped the unwritten
    pages, so that the next fsync succeeds and proves nothing.
    """

    instant = False

    def __init__(
        self,
        directory: Path | str,
        *,
        sync: SyncPolicy = "always",
        segment_size: int = SEGMENT_SIZE,
        disk: Disk | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.directory = Path(directory)
        self.name = str(directory)
        self._sync_policy = sync
        self._segment_size = segment_size
        self._disk = disk or Disk()
        self._mark = SyncMark(self.directory)
        self._broken: BaseException | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise directory_error(f"journal {directory} cannot be created", error) from error
        self._lock = AppendLock(self.directory, wait_seconds=wait_seconds)
        try:
            with self._lock.hold():
                self._adopt()
        except OSError as error:
            self._lock.close()
            raise JournalFailed(f"journal {directory} cannot be opened: {error.strerror or error}") from error
        except BaseException:
            self._lock.close()
            raise

    def _adopt(self) -> None:
        self._segment, found = open_last(self.directory, self._disk)
        self._end = self._synced = found.end
        self._registers = found.registers
        if self._sync_policy != "never":
            # Opening synced the segment, whatever was appended to it before.
            self._mark.write(self.id, self._end)

    @property
    def id(self) -> str:
        """Identifies the journal: a new journal in the same directory has another id."""
        return self._segment.info.journal

    def append_all(self, appends: Sequence[Append]) -> list[Commit | ConduitError]:
        if self._broken is not None:
            raise self._broken_error() from self._broken
        with self._lock.hold():
            try:
                self._catch_up()
                return self._append(appends)
            except JournalFull:
                # Nothing of it is in the file, so the journal is as before and a later append may succeed.
                raise
            except (OSError, ConduitError) as error:
                # What is on the disk is unknown now. Only opening the journal again verifies it.
                self._broken = error
                if isinstance(error, ConduitError):
                    raise
                raise JournalFailed(
                    f"journal {self.name}: an append failed: {error.strerror or error}",
                    suggestion="the journal is opened again, and verified, when the pipeline is started again",
                ) from error

    def reader(self, offset: int = 0) -> FileReader:
        return FileReader(self.directory, offset, durable=self._sync_policy != "never")

    def backward(self) -> Iterator[Frame]:
        return read_backward(self.directory)

    def prune(self, before: int) -> int:
        with self._lock.hold():
            starts = bases(self.directory)
            # The oldest first: a crash half-way leaves no hole between two segments.
            for base, following in pairwise(starts):
                if following > before:
                    return base
                self._disk.remove(self.directory / segment_name(base))
            return starts[-1]

    def close(self) -> None:
        self._segment.close()
        self._mark.close()
        self._lock.close()

    # Everything below is called with the lock held.

    def _catch_up(self) -> None:
        """Read what other processes appended since. An append that one of them left unfinished is cut off."""
        while True:
            status = os.fstat(self._segment.descriptor)
            end = self._segment.base + status.st_size
            # A file without a name still takes appends, and they would be lost when it is closed.
            if end < self._end or not status.st_nlink:
                raise JournalFailed(f"journal {self.name}: another program cut or removed {self._segment.path.name}")
            if end > self._end and self._read_on():
                continue
            following = self._end + HEADER_SIZE
            if not (self.directory / segment_name(following)).exists():
                return
            # Another process died after it made the next segment, before it sealed this one.
            self._seal()
            self._move_to(following)

    def _read_on(self) -> bool:
        """Read the frames of other processes. Returns True if they sealed the segment, and moves to the next."""
        for found in self._segment.walk(self._end):
            if isinstance(found, Damage):
                if found.tail:
                    check_tail(self._segment, found.begin)
                    # The lock is ours, so the process that was writing this has died.
                    cut_tail(self._segment, found, self._disk)
                    return False
                set_aside(self._segment, found, self._disk)
                self._end = found.end
                continue
            header, content = found
            self._registers = registers_after(header, content, self._registers)
            self._end = header.end
            if header.kind == SEAL:
                self._move_to(header.end)
                return True
        return False

    def _append(self, appends: Sequence[Append]) -> list[Commit | ConduitError]:
        if self._end - self._segment.base >= self._segment_size:
            self._roll()
        answers: list[Commit | ConduitError] = []
        frames: list[bytes] = []
        # Local until the write has succeeded: after a failure the head and the registers must be those of the file.
        head, registers = self._end, self._registers
        for append in appends:
            try:
                after = registers_for(self.name, append, self._head(head, append.at), registers)
                frame = self._encode(append, head, None if after == registers else after)
            except ConduitError as refusal:
                answers.append(refusal)
                continue
            if frame:
                frames.append(frame)
            answers.append(Commit(head, head + len(frame), after))
            head, registers = head + len(frame), after
        if frames:
            self._write(b"".join(frames))
        barrier = any(not append.bodies for append in appends)
        if self._sync_policy == "always" or (self._sync_policy == "batch" and barrier):
            self._sync(head)
        self._end, self._registers = head, registers
        return answers

    def _head(self, head: int, at: int | None) -> int:
        """The head as the caller's offset names it: the end of a segment is also the start of the next."""
        segment = self._segment
        if at is not None and head == segment.first and segment.base - HEADER_SIZE <= at < head:
            return at
        return head

    def _encode(self, append: Append, begin: int, registers: Registers | None) -> bytes:
        if not append.bodies:
            return b""
        changes = b"" if registers is None else encode_registers(registers)
        content = changes + pack_bodies(append.bodies)
        if len(content) > FRAME_SIZE_MAX:
            raise FrameTooLarge(f"journal {self.name}: an append of {len(content)} bytes is larger than a frame can be")
        count = len(append.bodies)
        synced = begin if self._sync_policy == "never" else self._synced
        return encode_frame(message_header(begin, synced, len(content), count, len(changes), append.id), content)

    def _write(self, data: bytes) -> None:
        at = self._end - self._segment.base
        try:
            self._disk.write(self._segment.descriptor, data, at)
        except OSError as error:
            # Readers would take half an append for damage as soon as something follows it.
            self._disk.truncate(self._segment.descriptor, at)
            if error.errno in _NO_ROOM:
                raise self._no_room(f"an append of {len(data)} bytes", error) from error
            raise

    def _no_room(self, what: str, error: OSError) -> JournalFull:
        return JournalFull(
            f"journal {self.name}: there is no room for {what}: {error.strerror}",
            suggestion="make room on the disk, or prune the journal",
        )

    def _sync(self, head: int) -> None:
        if self._synced == head:
            return
        try:
            self._disk.sync(self._segment.descriptor)
        except OSError:
            # The append was not confirmed to its caller, so no reader may see it: remove it, as far as the disk allows.
            self._disk.truncate(self._segment.descriptor, self._end - self._segment.base)
            raise
        self._synced = head
        self._mark.write(self.id, head)

    def _roll(self) -> None:
        """Continue in a new segment, created before the old one is sealed: a seal without it means that it is lost."""
        if self._sync_policy != "never":
            # First: once the next segment exists, a torn end of this one counts as damage.
            self._sync(self._end)
        following = self._end + HEADER_SIZE
        try:
            create_segment(self.directory, following, self.id, self._registers, self._disk)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise self._no_room("a new segment", error) from error
            raise
        self._seal()
        self._move_to(following)

    def _seal(self) -> None:
        self._write(mark(SEAL, self._end))
        self._disk.sync(self._segment.descriptor)

    def _move_to(self, base: int) -> None:
        # Before the old one is closed: if it cannot be opened, the log still has a segment.
        following = open_segment(self.directory, base, write=True)
        self._segment.close()
        self._segment = following
        self._end = self._synced = following.first
        self._registers = following.info.registers

    def _broken_error(self) -> JournalFailed:
        return JournalFailed(
            f"journal {self.name} takes no more appends, because an earlier one failed",
            suggestion="it is opened again, and verified, when the pipeline is started again",
        )
