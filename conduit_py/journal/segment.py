"""Segment: one file of a journal, what reading it from end to end finds, and its repair.

`open_last` verifies the last segment, and repairs it, before anything is appended. Nothing that could be a message is
deleted: what is cut off or set aside is kept in `quarantine/`, and logged with its offsets.
"""

import logging
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from conduit_py.journal.disk import Disk, read_mark, synced_end
from conduit_py.journal.errors import JournalUnfit, cut_short, emptied
from conduit_py.journal.frame import (
    GAP,
    HEADER_SIZE,
    MAGIC,
    MESSAGES,
    SEAL,
    SUFFIX,
    Header,
    NotASegment,
    SegmentInfo,
    content_holds,
    decode_header,
    decode_segment,
    encode_segment,
    mark,
    segment_name,
)
from conduit_py.journal.registers import Registers, decode_registers

_logger = logging.getLogger(__name__)

_HEADER_MAX = 2**20


class Damage(NamedTuple):
    """Bytes at `[begin, end)` that are not frames."""

    begin: int
    end: int
    what: str
    tail: bool
    """Whether no frame follows in the segment: an append that never ended looks like this."""


class Segment:
    """An open file of frames. Offsets are those of the journal; the header of the file counts."""

    def __init__(self, path: Path, base: int, descriptor: int) -> None:
        self.path = path
        self.base = base
        self.descriptor = descriptor
        self.info, header_size = decode_segment(os.pread(descriptor, _HEADER_MAX, 0))
        self.first = base + header_size
        """The offset of the first frame."""

    @classmethod
    def open(cls, directory: Path, base: int, *, write: bool = False) -> "Segment":
        """Open a file that is there. Raises FileNotFoundError, or NotASegment when its header is not one."""
        path = directory / segment_name(base)
        descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            return cls(path, base, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def end(self) -> int:
        """The offset at which the file ends now."""
        return self.base + os.fstat(self.descriptor).st_size

    def read(self, begin: int, size: int) -> bytes:
        """Up to `size` bytes from an offset on."""
        parts = []
        while size > 0 and (part := os.pread(self.descriptor, size, begin - self.base)):
            parts.append(part)
            begin, size = begin + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def header(self, begin: int) -> Header | None:
        """The header of the frame at an offset, if there is one."""
        return decode_header(self.read(begin, HEADER_SIZE), 0, begin)

    def walk(self, begin: int | None = None) -> "Iterator[tuple[Header, bytes] | Damage]":
        """Every frame with its content, and the damage between them, up to the end of the file."""
        begin = self.first if begin is None else begin
        return walk(self.read(begin, self.end - begin), begin)

    def close(self) -> None:
        os.close(self.descriptor)


def walk(data: bytes, begin: int) -> Iterator[tuple[Header, bytes] | Damage]:
    """The frames in bytes that lie at offset `begin`, and the damage between them."""
    at = 0
    while at < len(data):
        found = frame_at(data, at, begin + at)
        if found is not None:
            yield found
            at += found[0].size
            continue
        # From the next byte on, not by the length in the header: a damaged length would hide good frames.
        following = next_frame(data, at + 1, begin)
        stop = len(data) if following is None else following
        yield Damage(begin + at, begin + stop, _describe_damage(data, at, begin), following is None)
        at = stop


def frame_at(data: bytes, at: int, begin: int) -> tuple[Header, bytes] | None:
    """The frame at `data[at:]`; None if it is incomplete or damaged."""
    header = decode_header(data, at, begin)
    if header is None or at + header.size > len(data):
        return None
    content = data[at + HEADER_SIZE : at + header.size]
    return (header, content) if content_holds(header, content) else None


def next_frame(data: bytes, at: int, begin: int) -> int | None:
    """Where in `data`, from `at` on, the next good frame is."""
    while (at := data.find(MAGIC, at)) >= 0:
        if frame_at(data, at, begin + at) is not None:
            return at
        at += 1
    return None


def _describe_damage(data: bytes, at: int, begin: int) -> str:
    header = decode_header(data, at, begin + at)
    if header is None:
        return "no frame" if len(data) - at >= HEADER_SIZE else "an unfinished frame"
    return "an unfinished frame" if at + header.size > len(data) else "a frame whose checksum does not fit"


class SegmentSummary(NamedTuple):
    """What a segment holds, read from end to end."""

    frames: int
    messages: int
    end: int
    """Where the last good frame ends."""
    sealed: bool
    registers: Registers
    damages: list[Damage]
    gaps: list[tuple[int, int]]
    """Places where damage was set aside earlier."""


def summarise(segment: Segment) -> SegmentSummary:
    """Read a segment from end to end."""
    frames = messages = 0
    end, sealed, registers = segment.first, False, segment.info.registers
    damages: list[Damage] = []
    gaps: list[tuple[int, int]] = []
    for found in segment.walk():
        if isinstance(found, Damage):
            damages.append(found)
            continue
        header, content = found
        end = header.end
        if header.kind == MESSAGES:
            frames, messages = frames + 1, messages + header.messages
            registers = registers_after(header, content, registers)
        elif header.kind == GAP:
            gaps.append((header.begin, header.end))
        sealed = header.kind == SEAL
    return SegmentSummary(frames, messages, end, sealed, registers, damages, gaps)


def registers_after(header: Header, content: bytes, registers: Registers) -> Registers:
    """The registers after a frame that may have changed them."""
    return decode_registers(content[: header.registers_size]) if header.registers_size else registers


def bases(directory: Path) -> list[int]:
    """The offsets at which the segments of a journal begin, in order; empty when it has none."""
    names = (path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}"))
    # Other files may lie in the directory. Only a name that is an offset is a segment.
    return sorted(int(name) for name in names if name.isdecimal())


UNFINISHED = "an unfinished frame"


def open_last(directory: Path, disk: Disk) -> tuple[Segment, SegmentSummary]:
    """Open the segment to append to, verified and repaired; create the first one of a new journal."""
    # Drafts of a process that died before the rename: nothing refers to them.
    for leftover in directory.glob("*.tmp"):
        disk.remove(leftover)
    starts = bases(directory)
    if not starts:
        # A segment is durable before the mark is written, so a mark without segments means that they were removed.
        if (synced := read_mark(directory)) is not None:
            raise emptied(str(directory), synced[1])
        create_segment(directory, 0, secrets.token_hex(8), {}, disk)
        starts = [0]
    elif len(starts) > 1:
        _seal_before(directory, starts[-2], starts[-1], disk)
    segment = open_segment(directory, starts[-1], write=True)
    try:
        return segment, _verify(segment, disk)
    except BaseException:
        segment.close()
        raise


def open_segment(directory: Path, base: int, *, write: bool = False) -> Segment:
    """Open a segment that must be there and be readable."""
    try:
        return Segment.open(directory, base, write=write)
    except NotASegment as error:
        why = str(error)
    except FileNotFoundError:
        why = "it is missing"
    except PermissionError as error:
        why = error.strerror or str(error)
    raise JournalUnfit(
        f"segment {segment_name(base)} of journal {directory} cannot be used: {why}",
        suggestion=f"see what else is wrong with `conduit-py journal verify {directory}`, "
        f"then set it aside with `conduit-py journal repair {directory}`",
    )


def create_segment(
    directory: Path, base: int, journal: str, registers: Registers, disk: Disk, missing_until: int | None = None
) -> None:
    """Create a segment, durable on return, or none at all."""
    info = SegmentInfo(journal, base, registers, datetime.now(UTC).isoformat(timespec="seconds"), missing_until)
    disk.create(directory / segment_name(base), encode_segment(info))


def check_tail(segment: Segment, end: int) -> None:
    """Raise JournalUnfit if something is missing behind the last good frame that an append had confirmed."""
    confirmed = synced_end(segment.path.parent, segment.info.journal)
    # Call this before anything is cut off. An append that never ended lies behind what was confirmed.
    if end < confirmed:
        raise cut_short(str(segment.path.parent), segment.path.name, end, confirmed)


def cut_tail(segment: Segment, damage: Damage, disk: Disk) -> None:
    """Cut off what follows the last good frame. Unless it is just an append that never ended, it is kept aside."""
    # An append that never ended was confirmed to nobody. Anything else is copied before it is cut off.
    if damage.what != UNFINISHED:
        _keep(segment, damage, disk)
    disk.truncate(segment.descriptor, damage.begin - segment.base)
    # Otherwise a power cut could bring the torn bytes back, behind them the next append.
    disk.sync(segment.descriptor)
    _logger.warning(
        "journal %s: cut off %s at its end, offsets %d to %d",
        segment.path.parent,
        damage.what,
        damage.begin,
        damage.end,
    )


def set_aside(segment: Segment, damage: Damage, disk: Disk) -> None:
    """Keep damaged bytes in `quarantine/`, and put a gap in their place, so that readers go on behind it."""
    # The copy is durable before the gap overwrites the bytes.
    kept = _keep(segment, damage, disk)
    size = damage.end - damage.begin
    disk.write(segment.descriptor, mark(GAP, damage.begin, size), damage.begin - segment.base)
    disk.sync(segment.descriptor)
    _logger.error(
        "journal %s: %s at offsets %d to %d was set aside in %s: the messages in it are lost to readers",
        segment.path.parent,
        damage.what,
        damage.begin,
        damage.end,
        kept,
    )


def _verify(segment: Segment, disk: Disk) -> SegmentSummary:
    # After a failed fsync the cached pages may differ from the disk: drop them, so that the disk is read.
    disk.sync(segment.descriptor)
    os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    summary = summarise(segment)
    following = segment.info.missing_until or (summary.end if summary.sealed else None)
    if following is None:
        check_tail(segment, summary.end)
    for damage in summary.damages:
        (cut_tail if damage.tail else set_aside)(segment, damage, disk)
    if following is not None:
        # To append here would hide that messages are lost. An operator decides whether to accept that.
        raise JournalUnfit(
            f"journal {segment.path.parent} goes on at offset {following}, but that segment is missing",
            suggestion=f"put {segment_name(following)} back, or accept the loss "
            f"with `conduit-py journal repair {segment.path.parent}`",
        )
    return summarise(segment) if summary.damages else summary


def _seal_before(directory: Path, base: int, following: int, disk: Disk) -> None:
    """Seal a segment if a process created the next one and died before it sealed this one."""
    path = directory / segment_name(base)
    # Any other length means that it is sealed already, or damaged, which `conduit-py journal verify` reports.
    if base + path.stat().st_size != following - HEADER_SIZE:
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.write(descriptor, mark(SEAL, following - HEADER_SIZE), following - HEADER_SIZE - base)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def quarantine_path(segment: Segment, begin: int, end: int) -> Path:
    """Where the bytes at these offsets are kept when they are set aside."""
    return segment.path.parent / "quarantine" / f"{begin:020d}-{end:020d}.bin"


def _keep(segment: Segment, damage: Damage, disk: Disk) -> Path:
    kept = quarantine_path(segment, damage.begin, damage.end)
    kept.parent.mkdir(exist_ok=True)
    disk.create(kept, segment.read(damage.begin, damage.end - damage.begin))
    return kept
