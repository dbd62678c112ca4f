"""Audit: what is wrong with the files of a journal, found without changing them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from conduit_py.journal.fault import JournalUnfit
from conduit_py.journal.layout import HEADER_SIZE, NotASegment, OtherVersion, segment_name
from conduit_py.journal.recover import UNFINISHED
from conduit_py.journal.registers import Registers
from conduit_py.journal.segment import Segment, Summary, bases, summarise

Kind: TypeAlias = Literal["unfinished", "damaged", "unreadable", "missing", "unsealed", "gap"]
"""`unfinished`: an append that never ended, at the end of the journal: the next writer cuts it off. `unsealed`: a
process died as it began a new segment: the next writer seals the old one. `gap`: set aside by an earlier repair."""

HARMLESS: frozenset[Kind] = frozenset({"unfinished", "unsealed", "gap"})
"""What does not keep anybody from reading and writing, and costs nothing that was not reported before."""


class Finding(NamedTuple):
    """Something at `[begin, end)` of a journal that is not as it should be. Without an end it is its own end."""

    kind: Kind
    begin: int
    end: int
    what: str
    segment: int
    """Where the segment begins that it is found in."""


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
    """Everything there is to say about a journal."""

    id: str
    segments: list[SegmentReport]
    registers: Registers
    findings: list[Finding]

    @property
    def sound(self) -> bool:
        return all(each.kind in HARMLESS for each in self.findings)


def audit(directory: Path) -> Audit:
    """Read a journal from end to end. It may be in use: what is being appended is `unfinished` at worst."""
    starts = bases(directory)
    if not starts:
        raise JournalUnfit(f"there is no journal in {directory}", suggestion="name the directory of a journal")
    reports: list[SegmentReport] = []
    findings: list[Finding] = []
    id, registers = "", Registers()
    expected = starts[0]
    for base in starts:
        following = next((each for each in starts if each > base), None)
        if base > expected:
            findings.append(Finding("missing", expected, base, "a segment is missing", expected))
        size = (directory / segment_name(base)).stat().st_size
        try:
            segment = Segment.open(directory, base)
        except OtherVersion as error:
            raise JournalUnfit(f"segment {segment_name(base)} of journal {directory}: {error}") from error
        except NotASegment as error:
            expected = following or base + size
            findings.append(Finding("unreadable", base, expected, str(error), base))
            reports.append(SegmentReport(segment_name(base), base, base + size, 0, 0, False, ""))
            continue
        summary = summarise(segment)
        segment.close()
        id, registers, info = segment.info.journal, summary.registers, segment.info
        end = info.missing_until or base + size
        reports.append(_report(base, end, summary, info.created))
        findings += _findings(base, summary, info.missing_until, following)
        expected = following if following is not None and not summary.sealed else end
        if (summary.sealed or info.missing_until) and following is None:
            findings.append(Finding("missing", end, end, "the last segment is missing", end))
    return Audit(id, reports, registers, findings)


def _report(base: int, end: int, summary: Summary, created: str) -> SegmentReport:
    return SegmentReport(segment_name(base), base, end, summary.frames, summary.messages, summary.sealed, created)


def _findings(base: int, summary: Summary, missing_until: int | None, following: int | None) -> Iterator[Finding]:
    if missing_until is not None:
        yield Finding("gap", base, missing_until, "given up in an earlier repair", base)
        return
    for begin, end in summary.gaps:
        yield Finding("gap", begin, end, "set aside in an earlier repair", base)
    for damage in summary.damages:
        last = damage.tail and following is None
        kind: Kind = "unfinished" if last and damage.what == UNFINISHED else "damaged"
        end = following if damage.tail and following is not None else damage.end
        yield Finding(kind, damage.begin, end, damage.what, base)
    if following is not None and not summary.sealed and not any(damage.tail for damage in summary.damages):
        if summary.end == following - HEADER_SIZE:
            yield Finding("unsealed", summary.end, following, "the end of the segment is not marked", base)
        elif summary.end != following:
            yield Finding("damaged", summary.end, following, "the segment ends too early", base)
