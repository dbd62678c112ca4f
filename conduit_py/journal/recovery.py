"""Recovery: verify the last segment of a journal, and repair it, before anything is appended.

Nothing that could be a message is deleted: what is cut off or set aside is kept in `quarantine/`, and logged with
its offsets.
"""

import logging
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from conduit_py.journal.disk import Disk, read_mark, synced_end
from conduit_py.journal.errors import JournalUnfit, cut_short, emptied
from conduit_py.journal.frame import (
    GAP,
    HEADER_SIZE,
    SEAL,
    NotASegment,
    SegmentInfo,
    encode_segment,
    mark,
    segment_name,
)
from conduit_py.journal.registers import Registers
from conduit_py.journal.segment import Damage, Segment, SegmentSummary, bases, summarise

_logger = logging.getLogger(__name__)

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
