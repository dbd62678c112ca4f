"""Audit and repair: find what is wrong with the files of a journal, and repair it.

A repair deletes nothing that could be read or was part of a message.
"""

import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from conduit_py.journal.disk import AppendLock, Disk, read_mark, synced_end
from conduit_py.journal.errors import JournalUnfit
from conduit_py.journal.frame import (
    HEADER_SIZE,
    SEAL,
    NotASegment,
    OtherVersion,
    SegmentInfo,
    decode_header,
    encode_segment,
    mark,
    segment_name,
)
from conduit_py.journal.registers import Registers
from conduit_py.journal.segment import (
    UNFINISHED,
    Damage,
    Segment,
    SegmentSummary,
    bases,
    create_segment,
    cut_tail,
    next_frame,
    quarantine_path,
    set_aside,
    summarise,
)

Kind: TypeAlias = Literal["unfinished", "damaged", "unreadable", "missing", "lost", "unsealed", "gap"]
"""`unfinished`: an append that never ended, at the end of the journal: the next writer cuts it off. `unsealed`: a
process died as it began a new segment: the next writer seals the old one. `lost`: something at the end is gone that an
append had confirmed. `gap`: given up in an earlier repair."""

HARMLESS: frozenset[Kind] = frozenset({"unfinished", "unsealed"})
"""Findings that stop no reader or writer, and lose nothing that was confirmed."""


class AuditFinding(NamedTuple):
    """Something at `[begin, end)` of a journal that is not as it should be. Without an end it is its own end."""

    kind: Kind
    begin: int
    end: int
    what: str
    segment: int
    """Where the segment begins that it is found in."""
    messages: int | None = None
    """How many messages are lost there; None if that is unknown."""


class SegmentReport(NamedTuple):
    """One file of a journal. One that cannot be read has no counts."""

    name: str
    begin: int
    end: int
    frames: int
    messages: int
    sealed: bool
    created: str


class Audit(NamedTuple):
    """The result of an audit."""

    id: str
    segments: list[SegmentReport]
    registers: Registers
    findings: list[AuditFinding]

    @property
    def sound(self) -> bool:
        """True if readers and writers can go on. Messages may be lost even so: see `lost`."""
        return all(each.kind in HARMLESS or each.kind == "gap" for each in self.findings)

    @property
    def lost(self) -> list[AuditFinding]:
        """Where messages are lost, also those that an earlier repair gave up."""
        return [each for each in self.findings if each.kind not in HARMLESS and each.messages != 0]


def audit(directory: Path) -> Audit:
    """Read a journal from end to end. It may be in use: a running append is at worst `unfinished`."""
    # The mark first: a new journal has its first segment before it has a mark.
    mark, starts = read_mark(directory), bases(directory)
    if not starts:
        return _audit_empty(directory, mark)
    reports: list[SegmentReport] = []
    findings: list[AuditFinding] = []
    id, registers = "", Registers()
    expected = starts[0]
    for base in starts:
        following = next((each for each in starts if each > base), None)
        if base > expected:
            findings.append(AuditFinding("missing", expected, base, "a segment is missing", expected))
        size = (directory / segment_name(base)).stat().st_size
        try:
            segment = Segment.open(directory, base)
        except OtherVersion as error:
            # It may be sound by rules that are not ours, and a repair would damage it.
            raise JournalUnfit(f"segment {segment_name(base)} of journal {directory}: {error}") from error
        except NotASegment as error:
            expected = following or base + size
            # With frames in it, a repair only writes its header again.
            messages = None if next_frame((directory / segment_name(base)).read_bytes(), 0, base) is None else 0
            findings.append(AuditFinding("unreadable", base, expected, str(error), base, messages))
            reports.append(SegmentReport(segment_name(base), base, base + size, 0, 0, False, ""))
            continue
        summary = summarise(segment)
        id, registers, info = segment.info.journal, summary.registers, segment.info
        end = info.missing_until or base + size
        reports.append(_report(base, end, summary, info.created))
        confirmed = synced_end(directory, id) if following is None else 0
        findings += _findings(segment, summary, following, confirmed)
        segment.close()
        expected = following if following is not None and not summary.sealed else end
        if (summary.sealed or info.missing_until) and following is None:
            findings.append(AuditFinding("missing", end, max(end, confirmed), "the last segment is missing", end))
    return Audit(id, reports, registers, findings)


def _audit_empty(directory: Path, mark: tuple[str, int] | None) -> Audit:
    """The audit of a directory without segments, which is no journal unless it was one."""
    if mark is None:
        raise JournalUnfit(f"there is no journal in {directory}", suggestion="name the directory of a journal")
    id, confirmed = mark
    return Audit(id, [], {}, [AuditFinding("missing", 0, confirmed, "every segment is missing", 0)])


def _report(base: int, end: int, summary: SegmentSummary, created: str) -> SegmentReport:
    return SegmentReport(segment_name(base), base, end, summary.frames, summary.messages, summary.sealed, created)


def _findings(
    segment: Segment, summary: SegmentSummary, following: int | None, confirmed: int
) -> Iterator[AuditFinding]:
    base, missing_until = segment.base, segment.info.missing_until
    if missing_until is not None:
        yield AuditFinding("gap", base, missing_until, "given up in an earlier repair", base)
        return
    for begin, end in summary.gaps:
        kept = quarantine_path(segment, begin, end)
        messages = _count_messages(kept.read_bytes(), begin, end) if kept.exists() else None
        yield AuditFinding("gap", begin, end, "set aside in an earlier repair", base, messages)
    cut_short = summary.end < confirmed and not summary.sealed
    for damage in summary.damages:
        last = damage.tail and following is None
        if last and cut_short:
            continue  # It is part of what is lost at the end.
        end = following if damage.tail and following is not None else damage.end
        if last and damage.what == UNFINISHED:
            yield AuditFinding("unfinished", damage.begin, end, damage.what, base, 0 if confirmed else None)
        else:
            messages = _count_messages(segment.read(damage.begin, end - damage.begin), damage.begin, end)
            yield AuditFinding("damaged", damage.begin, end, damage.what, base, messages)
    if cut_short:
        end = max(confirmed, segment.end)
        messages = _count_messages(segment.read(summary.end, end - summary.end), summary.end, confirmed)
        what = "the segment was cut short, or is damaged at its end"
        yield AuditFinding("lost", summary.end, end, what, base, messages)
    if following is not None and not summary.sealed and not any(damage.tail for damage in summary.damages):
        if summary.end == following - HEADER_SIZE:
            yield AuditFinding("unsealed", summary.end, following, "the end of the segment is not marked", base)
        elif summary.end != following:
            yield AuditFinding("damaged", summary.end, following, "the segment ends too early", base)


def _count_messages(data: bytes, begin: int, end: int) -> int | None:
    """How many messages bytes up to `end` had, by the headers in them; None if one of these cannot be read."""
    at = messages = 0
    # What is no longer than a header, such as a seal, has no message.
    while begin + at + HEADER_SIZE < end:
        header = decode_header(data, at, begin + at)
        if header is None:
            return None
        at, messages = at + header.size, messages + header.messages
    return messages


def repair(directory: Path, disk: Disk | None = None) -> list[AuditFinding]:
    """Repair what an audit finds, and return it. Damage is kept in `quarantine/`, missing offsets become a gap."""
    disk = disk or Disk()
    # Before the lock, which would make a file: a directory that is no journal is left alone.
    audit(directory)
    lock = AppendLock(directory)
    try:
        with lock.hold():
            # Again under the lock: a writer may have appended or repaired something since.
            found = audit(directory)
            repaired = [each for each in found.findings if each.kind != "gap"]
            for finding in repaired:
                _repair(directory, found, finding, disk)
            return repaired
    finally:
        lock.close()


def _repair(directory: Path, found: Audit, finding: AuditFinding, disk: Disk) -> None:
    if finding.kind == "missing":
        until = finding.end if finding.end > finding.begin else None
        registers = _registers_before(directory, finding.begin)
        id = found.id or secrets.token_hex(8)
        create_segment(directory, finding.begin, id, registers, disk, until)
        if until is not None and finding.begin == bases(directory)[-1]:
            # Behind what was confirmed: an offset that readers have passed must not get another message.
            create_segment(directory, until, id, registers, disk)
    elif finding.kind == "unreadable":
        _repair_unreadable(directory, found, finding, disk)
    else:
        segment = Segment.open(directory, finding.segment, write=True)
        try:
            _repair_within(segment, finding, disk, last=finding.segment == bases(directory)[-1])
        finally:
            segment.close()


def _repair_within(segment: Segment, finding: AuditFinding, disk: Disk, *, last: bool) -> None:
    damage = Damage(finding.begin, finding.end, finding.what, tail=finding.end >= segment.end)
    if finding.kind == "unsealed":
        disk.write(segment.descriptor, mark(SEAL, finding.begin), finding.begin - segment.base)
        disk.sync(segment.descriptor)
    elif damage.tail and last and finding.kind != "lost":
        cut_tail(segment, damage, disk)
    else:
        # A segment that ends too early is made as long as it was, for the gap to have its place.
        disk.truncate(segment.descriptor, max(segment.end, finding.end) - segment.base)
        set_aside(segment, damage, disk)


def _repair_unreadable(directory: Path, found: Audit, finding: AuditFinding, disk: Disk) -> None:
    """Write a new header for a segment that has frames; without any, give the segment up."""
    base, path = finding.segment, directory / segment_name(finding.segment)
    folder = directory / "quarantine"
    folder.mkdir(exist_ok=True)
    data = path.read_bytes()
    # Durable before the segment is overwritten: a power cut must leave the old bytes in one of the two places.
    disk.create(folder / path.name, data)
    # The id may be legible even so; it is what positions refer to.
    legible = re.search(rb'"journal":"([0-9a-f]{16})"', data[:200])
    id = found.id or (legible.group(1).decode() if legible else secrets.token_hex(8))
    registers = _registers_before(directory, base)
    first = next_frame(data, 0, base)
    info = SegmentInfo(id, base, registers, _creation_time(data))
    if first is not None and len(encode_segment(info)) <= first:
        _overwrite(path, encode_segment(info, first), disk)
        return
    last = base == bases(directory)[-1]
    end = max(finding.end, synced_end(directory, id)) if last else finding.end
    create_segment(directory, base, id, registers, disk, missing_until=end)
    if last:
        create_segment(directory, end, id, registers, disk)


def _overwrite(path: Path, header: bytes, disk: Disk) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        disk.write(descriptor, header, 0)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def _creation_time(data: bytes) -> str:
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
