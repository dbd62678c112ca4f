"""Repair: set right what an audit finds. Nothing is thrown away that could be read, or was somebody's message."""

import os
import re
import secrets
import shutil
from pathlib import Path

from conduit_py.journal.audit import Audit, Finding, audit
from conduit_py.journal.disk import Disk
from conduit_py.journal.layout import SEAL, NotASegment, SegmentInfo, encode_segment, mark, segment_name
from conduit_py.journal.lock import AppendLock
from conduit_py.journal.recover import create_segment, cut_tail, set_aside
from conduit_py.journal.registers import Registers
from conduit_py.journal.segment import Damage, Segment, bases, next_frame, summarise


def repair(directory: Path, disk: Disk | None = None) -> list[Finding]:
    """Set right what an audit finds, and return it: damage is kept in `quarantine/`, what is missing is given up."""
    disk = disk or Disk()
    # Before the lock, which would make a file: a directory that is no journal is left alone.
    audit(directory)
    lock = AppendLock(directory)
    try:
        with lock.held():
            found = audit(directory)
            repaired = [each for each in found.findings if each.kind != "gap"]
            for finding in repaired:
                _repair(directory, found, finding, disk)
            return repaired
    finally:
        lock.close()


def _repair(directory: Path, found: Audit, finding: Finding, disk: Disk) -> None:
    if finding.kind == "missing":
        until = finding.end if finding.end > finding.begin else None
        registers = _registers_before(directory, finding.begin)
        create_segment(directory, finding.begin, found.id or secrets.token_hex(8), registers, disk, until)
    elif finding.kind == "unreadable":
        _repair_unreadable(directory, found, finding, disk)
    else:
        segment = Segment.open(directory, finding.segment, write=True)
        try:
            _repair_within(segment, finding, disk, last=finding.segment == bases(directory)[-1])
        finally:
            segment.close()


def _repair_within(segment: Segment, finding: Finding, disk: Disk, *, last: bool) -> None:
    damage = Damage(finding.begin, finding.end, finding.what, tail=finding.end >= segment.end)
    if finding.kind == "unsealed":
        disk.write(segment.descriptor, mark(SEAL, finding.begin), finding.begin - segment.base)
        disk.sync(segment.descriptor)
    elif damage.tail and last:
        cut_tail(segment, damage, disk)
    else:
        # A segment that ends too early is made as long as it was, for the gap to have its place.
        disk.truncate(segment.descriptor, max(segment.end, finding.end) - segment.base)
        set_aside(segment, damage, disk)


def _repair_unreadable(directory: Path, found: Audit, finding: Finding, disk: Disk) -> None:
    """Write the header of a segment anew, if there are frames behind it; else give the segment up."""
    base, path = finding.segment, directory / segment_name(finding.segment)
    folder = directory / "quarantine"
    folder.mkdir(exist_ok=True)
    shutil.copy2(path, folder / path.name)
    disk.sync_directory(folder)
    data = path.read_bytes()
    # The id may be legible even so; it is what positions refer to.
    legible = re.search(rb'"journal":"([0-9a-f]{16})"', data[:200])
    id = found.id or (legible.group(1).decode() if legible else secrets.token_hex(8))
    registers = _registers_before(directory, base)
    first = next_frame(data, 0, base)
    info = SegmentInfo(id, base, registers, _created(data))
    if first is not None and len(encode_segment(info)) <= first:
        _overwrite(path, encode_segment(info, first), disk)
        return
    create_segment(directory, base, id, registers, disk, missing_until=finding.end)
    if base == bases(directory)[-1]:
        create_segment(directory, finding.end, id, registers, disk)


def _overwrite(path: Path, header: bytes, disk: Disk) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.write(descriptor, header, 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def _created(data: bytes) -> str:
    legible = re.search(rb'"created":"([0-9T:+-]{25})"', data[:2000])
    return legible.group(1).decode() if legible else ""


def _registers_before(directory: Path, base: int) -> Registers:
    """The registers at the end of the last segment before an offset that can be read."""
    for each in reversed(bases(directory)):
        if each < base:
            try:
                segment = Segment.open(directory, each)
            except NotASegment:
                continue
            try:
                return summarise(segment).registers
            finally:
                segment.close()
    return {}
