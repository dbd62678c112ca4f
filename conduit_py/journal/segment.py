"""Segment: one file of a journal, and what reading it from end to end finds."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conduit_py.journal.frame import (
    GAP,
    HEADER_SIZE,
    MAGIC,
    MESSAGES,
    SEAL,
    SUFFIX,
    Header,
    content_holds,
    decode_header,
    decode_segment,
    segment_name,
)
from conduit_py.journal.registers import Registers, decode_registers

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
